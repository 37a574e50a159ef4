package operations

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// site is a gateway with simulated workers.
type site struct {
	*fleet.Fleet
	sent atomic.Int64
}

// secret stands in every prompt, and must stand on no page.
const secret = "xylophone-marmalade"

// operatorsKey opens the console of a fleet with keys.
const operatorsKey = "op-viewer-0123456789"

// newFleet starts three prefill and three decode workers at ten times the speed of what they imitate.
func newFleet(t testing.TB, keys bool) *site {
	t.Helper()
	return &site{Fleet: fleet.New(t, fleet.Options{
		Prefill: 3, Decode: 3, Speedup: 10,
		Worker: func(c *devfleet.WorkerConfig) {
			c.Engine.TotalKVBlocks, c.Engine.ContextLength, c.Engine.MaxNumSeqs = 3000, 32768, 48
		},
		Gateway: func(c *stack.GatewayConfig) {
			c.InForce = []console.Setting{{Group: "HTTP", Name: "http-port", Value: "8000", Source: "flag", Help: "TCP port."},
				{Group: "Router", Name: "router-mode", Value: "kv", Source: "default", Help: "Policy."}}
			if keys {
				c.Edge.AdminKeyFile = filepath.Join(t.TempDir(), "keys")
				require.NoError(t, os.WriteFile(c.Edge.AdminKeyFile, []byte(operatorsKey), 0o600))
			}
		},
	})}
}

// get reads a page, with the operators' key.
func (f *site) get(path string) (status int, body string) {
	f.T.Helper()
	req, err := http.NewRequest(http.MethodGet, f.URL+path, nil)
	require.NoError(f.T, err)
	req.Header.Set("Accept", "text/html")
	req.Header.Set("Authorization", "Bearer "+operatorsKey)
	res, err := http.DefaultClient.Do(req)
	require.NoError(f.T, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(f.T, err)
	return res.StatusCode, string(b)
}

// ask sends one request, streamed, of one of five families of prompts, and reads the whole answer.
func (f *site) ask(ctx context.Context, id string) error { return f.send(ctx, id, true) }

func (f *site) send(ctx context.Context, id string, stream bool) error {
	n := f.sent.Add(1)
	family := []int64{0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4}[n%11]
	system := strings.Repeat(fmt.Sprintf("You are assistant %d of the house of %s. ", family, secret), 40)
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"max_tokens":%d,"messages":[{"role":"system","content":%q},{"role":"user","content":"Question %d of %s, please?"}]}`,
		stack.SimModel, stream, 40+n%60, system, n, secret)
	var headers []string
	if id != "" {
		headers = []string{"X-Request-Id", id}
	}
	a, err := f.Try(ctx, fleet.ChatPath, body, nil, headers...)
	if err == nil && (a.Status != http.StatusOK || slices.Contains(a.Events, "[DONE]") != stream) {
		err = fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	return err
}

// load keeps n requests in flight until the test ends or stop is called, which returns the first failure.
func (f *site) load(n int) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	failures := make(chan error, n)
	for range n {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := f.ask(context.WithoutCancel(ctx), ""); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	once := sync.OnceValue(func() error {
		cancel()
		group.Wait()
		close(failures)
		return <-failures
	})
	f.T.Cleanup(func() { _ = once() })
	return once
}
