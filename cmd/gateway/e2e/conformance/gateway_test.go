//go:build engines

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// Gateway is a process of the gateway's binary in front of engines.
type Gateway struct {
	// URL is http://127.0.0.1:PORT.
	URL string
	// Log is the file of its output.
	Log string

	cmd   *exec.Cmd
	ended chan struct{}
}

// Build builds the gateway's binary into dir and returns its path. module is the module's folder.
func Build(ctx context.Context, module, dir string, log io.Writer) (string, error) {
	bin := filepath.Join(dir, "gateway")
	return bin, testkit.Build{Dir: module, Flags: []string{"-o", bin}, Packages: []string{"./cmd/gateway"}, Name: "the gateway"}.Run(ctx, log)
}

// Serve starts the gateway in front of engines and returns when all have joined. name is that of its log.
func Serve(ctx context.Context, bin, name string, port int, engines []*Engine, args ...string) (*Gateway, error) {
	h := engines[0].host
	g := &Gateway{URL: "http://127.0.0.1:" + strconv.Itoa(port), Log: filepath.Join(h.Dir, name+".log"), ended: make(chan struct{})}
	all := []string{"serve", "--http-port", strconv.Itoa(port), "--tokenizer", "tiny=" + filepath.Join(h.Models, "tiny")}
	for _, e := range engines {
		all = append(all, e.Flag())
	}
	log, err := os.Create(g.Log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	g.cmd = exec.Command(bin, append(all, args...)...)
	g.cmd.Stdout, g.cmd.Stderr = log, log
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = g.cmd.Wait()
		close(g.ended)
	}()
	if err := g.Await(ctx, len(engines)); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// Await waits until n workers take requests, for two minutes at most. The error has the end of the gateway's log.
func (g *Gateway) Await(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		up, err := g.up(ctx)
		if err == nil && up == n {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
			continue
		case <-g.ended:
			err = errors.New("it ended")
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), err)
		}
		text, _ := os.ReadFile(g.Log)
		return fmt.Errorf("the gateway has %d of %d workers: %w\n%s", up, n, err, tail(text))
	}
}

// Close ends the gateway as an operator does, and waits for its end.
func (g *Gateway) Close() {
	_ = g.cmd.Process.Signal(os.Interrupt)
	select {
	case <-g.ended:
	case <-time.After(30 * time.Second):
		_ = g.cmd.Process.Kill()
		<-g.ended
	}
}

// up counts the workers that take requests.
func (g *Gateway) up(ctx context.Context) (n int, err error) {
	var all struct {
		Pools []struct{ Workers []struct{ State string } }
	}
	if err := Get(ctx, g.URL+"/workers", &all); err != nil {
		return 0, err
	}
	for _, p := range all.Pools {
		for _, w := range p.Workers {
			if w.State == "up" {
				n++
			}
		}
	}
	return n, nil
}
