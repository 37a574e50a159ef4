// Command tryreal puts the gateway in front of real engines on this machine's CPU: a pair of prefill and decode
// workers, a first question, and the console; or, with -routing, two workers and a comparison of routing modes.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/lab/realtest"
)

func main() {
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "tryreal:", err)
		os.Exit(1)
	}
}

// command reads the command line and runs it until its end, or an interrupt.
func command() error {
	t := trial{out: os.Stdout}
	flag.BoolVar(&t.routing, "routing", false, "compare the routing modes round-robin, kv and auto on two workers; vllm only")
	flag.BoolVar(&t.once, "once", false, "end after the first answer")
	flag.BoolVar(&t.setup, "setup", false, "build what the engine needs, and end")
	flag.IntVar(&t.port, "http-port", 8000, "port of the gateway")
	flag.StringVar(&t.tokenizer, "tokenizer", "internal/tokens/sim_tokenizer.json", "tokenizer.json of the model, or its folder")
	flag.Usage = func() {
		_, _ = fmt.Fprint(flag.CommandLine.Output(),
			"Puts the gateway in front of real engines with a tiny random model, on the CPU.\n\nusage: go run ./lab/tryreal [flags] vllm|sglang\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	t.kind = flag.Arg(0)
	switch {
	case t.kind != "vllm" && t.kind != "sglang" || flag.NArg() > 1:
		return errors.New("name one engine, vllm or sglang; -help lists the flags")
	case t.routing && t.kind != "vllm":
		return errors.New("-routing is measured by vLLM's own bench tool: vllm only")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := t.run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// trial is a run of the command.
type trial struct {
	kind, tokenizer string
	port            int
	routing, once   bool
	setup           bool
	out             io.Writer
}

func (t trial) run(ctx context.Context) error {
	began := time.Now()
	report := func(format string, args ...any) {
		_, _ = fmt.Fprintf(t.out, "%4.0f s  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	cache, err := realtest.Cache()
	if err != nil {
		return err
	}
	report("Needs 9 GB in %s, 5 GB of memory and two cores; about 4 minutes, and 1 when the packages are there. Ctrl-C ends it.", cache)
	if t.setup {
		return realtest.Setup(ctx, t.kind, t.tokenizer, os.Stderr)
	}
	dir, err := os.MkdirTemp("", "tandem-"+t.kind)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	report("building the gateway; setting up %s and importing it", t.kind)
	var bin string
	var built error
	var building sync.WaitGroup
	building.Go(func() { bin, built = realtest.Build(ctx, ".", dir, os.Stderr) })
	h, err := realtest.Start(ctx, t.kind, t.tokenizer, dir, os.Stderr)
	building.Wait()
	if h != nil {
		defer func() { _ = h.Close() }()
	}
	if err := errors.Join(err, built); err != nil {
		return err
	}
	if t.routing {
		return t.compare(ctx, h, bin, report)
	}
	report("starting a prefill and a decode worker; logs are in %s", dir)
	var engines []*realtest.Engine
	for _, role := range []string{"prefill", "decode"} {
		e, err := h.Launch(realtest.Spec{Name: role, Role: role})
		if err != nil {
			return err
		}
		engines = append(engines, e)
	}
	for _, e := range engines {
		if err := e.Ready(ctx); err != nil {
			return err
		}
	}
	g, err := realtest.Serve(ctx, bin, "gateway", t.port, engines)
	if err != nil {
		return err
	}
	defer g.Close()
	const question = `{"model":"tiny","messages":[{"role":"user","content":"Which worker has my KV?"}],"max_tokens":16,"nvext":{"extra_fields":["worker_id","timing"]}}`
	report("asking: %s", question)
	answer, err := ask(ctx, g.URL, question)
	if err != nil {
		return err
	}
	report("answer, of a model with random weights: %s", answer)
	if t.once {
		return nil
	}
	report("The console is at %s/. Try:\n\n    curl -N %s/v1/chat/completions -H 'content-type: application/json' -d '{\"model\":\"tiny\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n", g.URL, g.URL)
	<-ctx.Done()
	return nil
}

// compare prints each routing mode's results.
func (t trial) compare(ctx context.Context, h *realtest.Host, bin string, report func(string, ...any)) error {
	report("starting two workers whose caches hold a third of the load's prefixes; then 50 s a mode")
	var table bytes.Buffer
	table.WriteString("| mode | cached of the prompt tokens (engines' counters) | TTFT mean | p50 | p90 | p99, ms |\n|---|---|---|---|---|---|\n")
	err := realtest.CompareModes(ctx, h, bin, []string{"round-robin", "kv", "auto"}, func(m realtest.Mode) {
		report("%s: %.1f %% of %.0f tokens cached, TTFT mean %.0f ms", m.Name, 100*m.Cached/m.Prompt, m.Prompt, m.Mean)
		fmt.Fprintf(&table, "| %s | %.1f %% of %.0f | %.0f | %.0f | %.0f | %.0f |\n", m.Name, 100*m.Cached/m.Prompt, m.Prompt, m.Mean,
			m.P50, m.P90, m.P99)
	})
	_, _ = fmt.Fprintf(t.out, "\n%s", &table)
	return err
}

// ask sends a chat and returns the answer's text and routing.
func ask(ctx context.Context, url, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %s: %w", res.StatusCode, text, err)
	}
	var a struct {
		Choices []struct{ Message struct{ Content string } }
		Nvext   json.RawMessage
	}
	if err := json.Unmarshal(text, &a); err != nil || len(a.Choices) == 0 {
		return "", fmt.Errorf("%s: %w", text, err)
	}
	return fmt.Sprintf("%q %s", a.Choices[0].Message.Content, a.Nvext), nil
}
