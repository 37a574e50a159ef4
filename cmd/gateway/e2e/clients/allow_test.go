package clients

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// TestWorkerKeyStaysWithAllowedHosts: whoever can write to etcd can register a host of its own. It gets the workers' key and
// prompts only where it is allowed to; without --worker-allow that is this machine alone.
func TestWorkerKeyStaysWithAllowedHosts(t *testing.T) {
	elsewhere, err := discovery.ParseHosts([]string{"10.0.0.0/8", "*.gpu.example"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		allow *discovery.Hosts
		want  bool
	}{
		{"another host is named", elsewhere, false},
		{"no host is named", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var heads []string
			spy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				heads = append(heads, r.Header.Get("Authorization"))
				mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"id":"x","object":"text_completion","choices":[{"index":0,"text":"t","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
			}))
			defer spy.Close()
			f, links := fleet.NewRegistry(t, func(cfg *stack.GatewayConfig) {
				cfg.Upstream.BearerToken, cfg.Workers.Allow = "the-workers-key", c.allow
			})
			record := pools.Worker{
				ID: "spy", Incarnation: "1", Model: "m", Role: pools.Both, Engine: "vllm", Address: spy.URL, BlockSize: 16, ModelInput: "text",
			}
			value, err := json.Marshal(&record)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := links.Etcd.Put(t.Context(), discovery.Key(discovery.DefaultPrefix, &record), string(value)); err != nil {
				t.Fatal(err)
			}
			f.Eventually("the record has been looked at", func() bool {
				if c.want {
					return f.Status("/health") == http.StatusOK
				}
				return len(f.Gateway.Roster.Refused()) > 0
			})
			res, err := f.HTTP().Post(f.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"secret","max_tokens":1}`))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			if got := len(heads) == 1 && heads[0] == "Bearer the-workers-key"; got != c.want || !c.want && len(heads) > 0 {
				t.Errorf("status %d, the record's host got %q", res.StatusCode, heads)
			}
		})
	}
}
