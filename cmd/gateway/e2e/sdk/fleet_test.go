// Package sdk has real client libraries and programs talk to `gateway dev`, for every engine that it imitates. It is a
// module of its own, which keeps them out of the product.
package sdk

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const model = "tandem-sim"

// full is the fleet that has no queue.
const full = "full"

var engines = []string{"sim", "vllm", "sglang", "trtllm"}

// addresses are the gateways by their engine, and by vectors of it those whose workers serve embeddings. TestMain starts
// them, once for all tests and older releases.
var (
	addresses = map[string]string{}
	guard     sync.Mutex // of addresses and running while they start
)

// vectors names an engine's fleet that serves embeddings.
func vectors(engine string) string { return engine + "-vectors" }

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
		defer cancel()
		defer stop()
		if err := start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// fleetsVariable has addresses as NAME=URL, with a comma between them, for a run inside a run.
const fleetsVariable = "TANDEM_SDK_FLEETS"

var running []*exec.Cmd

func start(ctx context.Context) error {
	if given := os.Getenv(fleetsVariable); given != "" {
		for pair := range strings.SplitSeq(given, ",") {
			name, address, _ := strings.Cut(pair, "=")
			addresses[name] = address
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "sdk")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "gateway")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/gateway")
	build.Dir, build.Stderr = filepath.Join("..", "..", "..", ".."), os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	fleets := map[string][]string{full: {"dev", "--in-process", "--engine", "vllm", "--prefill", "1", "--queue-limit", "0", "--router-queue-threshold", "0"}}
	for _, engine := range engines {
		fleets[engine] = []string{"dev", "--in-process", "--engine", engine, "--prefill", "1", "--sse-heartbeat", "100ms",
			"--model-alias", "claude-tandem=" + model}
		fleets[vectors(engine)] = []string{"worker", "--engine", engine, "--worker-kv-events", "none"}
	}
	failures := make(chan error, len(fleets))
	for name, flags := range fleets {
		go func() { failures <- fleet(ctx, binary, name, flags) }()
	}
	for range fleets {
		err = errors.Join(err, <-failures)
	}
	return err
}

// fleet starts a fleet on this machine and waits until its gateway is ready. For vectors it is a gateway with one worker
// that serves alone.
func fleet(ctx context.Context, binary, name string, flags []string) error {
	if strings.HasSuffix(name, vectors("")) {
		worker, err := launch(ctx, `"address":"`, binary, flags...)
		if err != nil {
			return err
		}
		flags = []string{"serve", "--worker-url", worker + ",model=" + model + "," + strings.TrimLeft(strings.Join(flags[1:3], "="), "-")}
	}
	address, err := launch(ctx, "ready ", binary, append(flags, "--http-port", "0", "--log-level", "error")...)
	if err == nil && flags[0] == "serve" {
		err = joined(ctx, address)
	}
	guard.Lock()
	defer guard.Unlock()
	addresses[name] = address
	return err
}

// joined waits until a fleet serves embeddings.
func joined(ctx context.Context, address string) error {
	for again := time.NewTicker(50 * time.Millisecond); ; {
		res, err := http.Post(address+"/v1/embeddings", "application/json", strings.NewReader(`{"model":"`+model+`","input":"x"}`))
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no worker for embeddings: status %d", res.StatusCode)
		case <-again.C:
		}
	}
}

// launch starts a process that stop ends, and returns the address behind a word that it prints.
func launch(ctx context.Context, word, binary string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, binary, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 20 * time.Second
	out, in, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer in.Close()
	c.Stdout, c.Stderr = in, in
	if err := c.Start(); err != nil {
		return "", err
	}
	guard.Lock()
	running = append(running, c)
	guard.Unlock()
	var printed strings.Builder
	for s := bufio.NewScanner(out); s.Scan(); {
		if _, address, ok := strings.Cut(s.Text(), word); ok {
			go io.Copy(os.Stderr, out) // ends with the process
			address, _, _ = strings.Cut(address, `"`)
			return address, nil
		}
		printed.WriteString(s.Text() + "\n")
	}
	return "", fmt.Errorf("gateway %v ended before it was ready: %s", args, printed.String())
}

func stop() {
	for _, c := range running {
		_ = c.Process.Signal(syscall.SIGTERM)
	}
	for _, c := range running {
		_ = c.Wait()
	}
}

// each runs a test against every engine's gateway, all at the same time.
func each(t *testing.T, test func(t *testing.T, engine, address string)) {
	t.Parallel()
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, addresses[engine])
			test(t, engine, addresses[engine])
		})
	}
}

// pixel is an image of one pixel, as a data URI has it.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
