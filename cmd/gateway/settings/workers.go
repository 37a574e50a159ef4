package settings

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Workers is which workers are given by their URL instead of registering, and how they are looked after.
type Workers struct {
	PrefillURLs    []string      `setting:"prefill-url"`
	DecodeURLs     []string      `setting:"decode-url"`
	URLs           []string      `setting:"worker-url"`
	File           string        `setting:"workers-file"`
	HealthInterval time.Duration `setting:"worker-health-interval"`
	APIKeyFile     string        `setting:"worker-api-key-file"`
	Allow          []string      `setting:"worker-allow"`
	MinInitial     int           `setting:"router-min-initial-workers"`
}

// Given reports whether any worker is given by its URL, or may be.
func (w *Workers) Given() bool {
	return len(w.PrefillURLs)+len(w.DecodeURLs)+len(w.URLs) > 0 || w.File != ""
}

// WorkersGroup is the table that fills [Workers].
func WorkersGroup() Group {
	return Group{Title: "Workers by URL", Settings: []Setting{
		{
			Name: "prefill-url", Kind: Words, Default: "", Validate: workerURLs,
			Help: "A prefill worker that does not register in etcd, as http://HOST:PORT. Repeat the flag for each; in a variable blanks " +
				"separate workers, in a file a list does. Model and limits are asked of the worker, or given behind the URL as in " +
				"http://HOST:PORT,model=NAME: model, id, engine (vllm, sglang, trtllm, sim), block-size, kv-blocks, max-num-seqs, " +
				"max-num-batched-tokens, context-length, ranks, device, taints (semicolons between them), model-input, transfer, kv-events, kv-replay, kv-topic. " +
				"With model= it is used at once, else as soon as it answers. kv-events=none does not follow the KV events that it tells of.",
		},
		{Name: "decode-url", Kind: Words, Default: "", Validate: workerURLs, Help: "A decode worker, as prefill-url has it."},
		{
			Name: "worker-url", Aliases: []string{"static-endpoint"}, Kind: Words, Default: "", Validate: workerURLs,
			Help: "A worker that serves requests alone, prefill and decode, as prefill-url has it. It may have role=prefill or role=decode behind it.",
		},
		{
			Name: "workers-file", Kind: String, Default: "",
			Help: "YAML file with a list of workers, each with url, role (prefill, decode, both) and what may stand behind a prefill-url. " +
				"It is read again within two seconds of a change, and at once on SIGHUP; one with a mistake leaves the workers as they were.",
		},
		{
			Name: "worker-health-interval", Kind: Duration, Default: "5s", Min: "100ms", Max: "10m",
			Help: "How often a worker given by URL is asked whether it is well. Three failures in a row take it out, asked for in quicker " +
				"succession; it comes back when it answers. Shorter notices sooner and asks more.",
		},
		{
			Name: "worker-api-key-file", Kind: String, Default: "",
			Help: "File with one line: the API key that the workers ask for, sent as Authorization: Bearer to every worker: to those given by URL, and to those that " +
				"registered in etcd from a host that worker-allow names. It is read once, at the start.",
		},
		{
			Name: "worker-allow", Kind: List, Default: "",
			Help: "Hosts of which workers may register in etcd, each as NAME, *.DOMAIN, ADDRESS, a network such as 10.0.0.0/8, or * for any. A record that names " +
				"another host, for requests or for KV events, is refused: it gets neither prompts nor the workers' key. Names are not looked up. Empty allows every host, " +
				"or with worker-api-key-file this machine alone. Workers given by URL need not be named.",
		},
		{
			Name: "router-min-initial-workers", Kind: Int, Default: "0", Min: "0", Max: "4096",
			Help: "Number of workers that must have been ready at once before the first request is taken; until then /health and requests are " +
				"answered 503. Keeps a fleet that starts from sending everything to its first worker. 0 takes requests at once.",
		},
	}}
}

// workerURLs looks at the addresses alone: what may stand behind them is discovery's to know.
func workerURLs(value any) error {
	for _, item := range value.([]string) {
		if strings.ContainsFunc(item, func(r rune) bool { return strings.ContainsRune(" \t\r\n\v\f", r) }) {
			return errors.New("a worker's URL has no blanks; in a list each worker is an item")
		}
		url, _, _ := strings.Cut(item, ",")
		if !strings.Contains(url, "://") {
			return fmt.Errorf("%s is not an address, as http://HOST:PORT", quote(url[strings.LastIndex(url, "@")+1:]))
		}
		if err := address(url, "http", "https"); err != nil {
			return err
		}
	}
	return nil
}
