package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/telemetry"
)

// devSettings is what can be set about the fleet, beside the gateway's own
// settings.
type devSettings struct {
	Prefill    int     `setting:"prefill"`
	Decode     int     `setting:"decode"`
	Speedup    float64 `setting:"speedup"`
	InProcess  bool    `setting:"in-process"`
	Restart    bool    `setting:"restart"`
	Smoke      bool    `setting:"smoke"`
	ModelInput string  `setting:"model-input"`
}

func devGroup() settings.Group {
	return settings.Group{Title: "Fleet", Settings: []settings.Setting{
		{Name: "prefill", Kind: settings.Int, Default: "2", Min: "0", Max: "64", Help: "Number of prefill workers. With none, decode workers prefill for themselves."},
		{Name: "decode", Kind: settings.Int, Default: "2", Min: "1", Max: "64", Help: "Number of decode workers."},
		speedup,
		{Name: "in-process", Kind: settings.Bool, Default: "false", Help: "Run the workers inside this process. As processes of their own, the default, they can be killed one by one."},
		{
			Name: "restart", Kind: settings.Bool, Default: "true",
			Help: "Off: a worker process that was killed stays away. On, it is started again after a second, as an orchestrator would; one that ends well, on SIGTERM, stays away either way.",
		},
		{Name: "smoke", Kind: settings.Bool, Default: "false", Help: "Send one request of each kind, say how each went, and exit with 0 or 1."},
		{
			Name: "model-input", Kind: settings.String, Default: "text",
			OneOf: []settings.Choice{{Name: "text", Help: "the client's own body"}, {Name: "tokens", Help: "token ids in the prompt's place"}},
			Help:  "What the workers register to take as a prompt.",
		},
	}}
}

// devDrain bounds how long Ctrl-C may wait for streams: dev ends within 5 s.
const devDrain = 2 * time.Second

// dev runs the whole fleet until Ctrl-C, or, with --smoke, for one request of
// each kind.
func dev(ctx context.Context, args []string, p process) error {
	var s struct {
		Fleet   devSettings
		Gateway settings.Gateway
	}
	set := settings.NewSet(append([]settings.Group{devGroup()}, gatewayGroups()...)...).Beside(besides()...)
	r, err := resolve(set, "gateway dev [FLAGS]: run a whole fleet on this machine.\n"+
		"NATS, etcd and the gateway run in this process, the simulated workers as its children; kill one and see what happens.", args, p, &s)
	if err != nil {
		return err
	}
	for _, name := range []string{"etcd-endpoints", "nats-url"} {
		if r.IsSet(name) {
			return usageError{r.Refuse(name, errors.New("dev brings its own etcd and NATS; leave it out"))}
		}
	}
	for _, name := range []string{"api-key-file", "admin-key-file", "admin-address", "client-hints"} {
		if s.Fleet.Smoke && r.IsSet(name) {
			return usageError{r.Refuse(name, errors.New("the smoke test asks as anybody may, on one address; leave it out"))}
		}
	}
	for _, name := range []string{"prefill-url", "decode-url", "worker-url", "workers-file"} {
		if r.IsSet(name) {
			return usageError{r.Refuse(name, errors.New("dev brings its own workers; leave it out"))}
		}
	}
	if r.IsSet("remote-index-url") {
		return usageError{r.Refuse("remote-index-url", errors.New("dev's gateway follows its workers by itself; leave it out"))}
	}
	if s.Fleet.Smoke && !r.IsSet("http-port") {
		s.Gateway.HTTP.Port = 0 // a smoke test must not mind what else runs here
	}
	if s.Fleet.Smoke && !r.IsSet("log-level") {
		s.Gateway.Logging.Level = "warn"
	}
	if s.Gateway.Router.KVCacheBlockSize == 0 {
		s.Gateway.Router.KVCacheBlockSize = 16
	}
	cfg, err := gatewayConfig(s.Gateway)
	if err != nil {
		return usageError{err}
	}
	cfg.Grace, cfg.Drain = 0, min(cfg.Drain, devDrain)
	log, err := newLogger(p, r, s.Gateway.Logging)
	if err != nil {
		return err
	}
	if err := inject(&cfg, s.Gateway.Faults, r, p, log); err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	child := worker{ // the in-process form of what workerArgs says to a child
		Host: "127.0.0.1", BlockSize: s.Gateway.Router.KVCacheBlockSize, Speedup: s.Fleet.Speedup, Bandwidth: 50,
		ModelInput: s.Fleet.ModelInput, DeviceClass: "sim", Discovery: s.Gateway.Discovery, Drain: devDrain,
	}
	fleet, err := stack.StartDev(stack.DevConfig{
		Gateway: cfg, Prefill: s.Fleet.Prefill, Decode: s.Fleet.Decode, Worker: child.config(), InProcess: s.Fleet.InProcess,
		KVEvents: s.Gateway.Router.KVEvents, Stream: streamConfig(s.Gateway.KVStream), Binary: binary, WorkerArgs: workerArgs(s.Gateway, s.Fleet),
		Restart: s.Fleet.Restart, Out: p.stdout,
	}, log, telemetry.NewRegistry())
	if err != nil {
		return err
	}
	defer fleet.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return fleet.Run(ctx, func(ctx context.Context) error {
		if s.Fleet.Smoke {
			defer cancel()
			return smoke(ctx, fleet.URL(), p.stdout)
		}
		fleet.Table()
		fmt.Fprintf(p.stdout, "\nTry:\n  %s\n\nAdd a worker:\n  %s\n\n", curl(fleet.URL()),
			joinLine(p, "decode", fmt.Sprintf("decode-%d", s.Fleet.Decode+1), fleet.Inside(), s.Gateway,
				"--speedup", fmt.Sprint(s.Fleet.Speedup), "--model-input", s.Fleet.ModelInput))
		if admin := fleet.AdminURL(); admin != "" {
			fmt.Fprintf(p.stdout, "admin %s\n", admin)
		}
		fmt.Fprintf(p.stdout, "ready %s\n", fleet.URL())
		return nil
	})
}

// curl is a command line that works, for people to paste.
func curl(url string) string {
	return "curl -N " + url + `/v1/chat/completions -H 'content-type: application/json' ` +
		`-d '{"model":"` + stack.SimModel + `","stream":true,"max_tokens":16,"messages":[{"role":"user","content":"Hello"}]}'`
}
