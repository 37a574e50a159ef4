// Package sdk has real client libraries talk to `gateway dev`, for every engine that it imitates. It is a module of its
// own, which keeps them out of the product.
package sdk

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const model = "tandem-sim"

// full is the fleet that has no queue.
const full = "full"

var engines = []string{"sim", "vllm", "sglang", "trtllm"}

// addresses are the gateways by their engine. TestMain starts them, once for all tests and older releases.
var addresses = map[string]string{}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		if err := start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer stop()
		return m.Run()
	}())
}

// fleetsVariable has addresses as ENGINE=URL, with a comma between them, for a run inside a run.
const fleetsVariable = "TANDEM_SDK_FLEETS"

var running []*exec.Cmd

func start(ctx context.Context) error {
	if given := os.Getenv(fleetsVariable); given != "" {
		for _, pair := range strings.Split(given, ",") {
			engine, address, _ := strings.Cut(pair, "=")
			addresses[engine] = address
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
	for _, engine := range engines {
		address, err := fleet(ctx, binary, "--engine", engine, "--sse-heartbeat", "100ms", "--model-alias", "claude-tandem="+model)
		if err != nil {
			stop()
			return err
		}
		addresses[engine] = address
	}
	addresses[full], err = fleet(ctx, binary, "--engine", "vllm", "--queue-limit", "0", "--router-queue-threshold", "0")
	if err != nil {
		stop()
	}
	return err
}

// fleet starts a fleet on this machine and returns the gateway's address once it is ready.
func fleet(ctx context.Context, binary string, flags ...string) (string, error) {
	c := exec.CommandContext(ctx, binary, append([]string{"dev", "--in-process", "--http-port", "0", "--prefill", "1", "--decode", "2",
		"--log-level", "error"}, flags...)...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 20 * time.Second
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := c.Start(); err != nil {
		return "", err
	}
	running = append(running, c)
	for s := bufio.NewScanner(out); s.Scan(); {
		if address, ok := strings.CutPrefix(s.Text(), "ready "); ok {
			return address, nil
		}
	}
	return "", fmt.Errorf("gateway dev %v ended before it was ready", flags)
}

func stop() {
	for _, c := range running {
		_ = c.Process.Signal(syscall.SIGTERM)
	}
	for _, c := range running {
		_ = c.Wait()
	}
}

// each runs a test against every engine's gateway.
func each(t *testing.T, test func(t *testing.T, engine, address string)) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			require.NotEmpty(t, addresses[engine])
			test(t, engine, addresses[engine])
		})
	}
}

// pixel is an image of one pixel, as a data URI has it.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
