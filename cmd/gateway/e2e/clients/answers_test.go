package clients

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// Every form of the same request gives the undisturbed answer, whatever the workers take as a prompt.
func TestEveryFormOfARequest(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		t.Run(input, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{ModelInput: input})
			ids := fleet.TextPrompt(fleet.Long)
			for _, c := range []struct {
				name, path, body string
				prompt           []uint32
			}{
				{"chat", fleet.ChatPath, `"messages":[{"role":"user","content":"Hello"}]`, fleet.ChatPrompt("Hello")},
				{"chat in parts", fleet.ChatPath, `"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]`,
					fleet.ChatPrompt("Hello")},
				{"completion", fleet.CompletionPath, `"prompt":"` + fleet.Long + `"`, ids},
				{"completion of ids", fleet.CompletionPath, `"prompt":` + strings.ReplaceAll(fmt.Sprint(ids), " ", ","), ids},
				{"completion of a list of one", fleet.CompletionPath, `"prompt":["` + fleet.Long + `"]`, ids},
			} {
				for _, stream := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/stream=%v", c.name, stream), func(t *testing.T) {
						body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":12,"stream":%v,%s}`, stream, c.body)
						a := f.Good(c.path, body)
						assert.Equal(t, fleet.Expected(c.prompt, 12), f.Text(a), "text")
						assert.NotEmpty(t, a.Header.Get("X-Request-Id"), "no x-request-id")
						f.CheckShape(a, c.path, stream)
					})
				}
			}
			f.Idle()
		})
	}
}

// A chat that sets no limit is as long at a worker that takes tokens as at one
// that takes text: a completion without max_tokens would end after 16.
func TestChatWithoutALimit(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		f := fleet.New(t, fleet.Options{ModelInput: input, Worker: func(c *devfleet.WorkerConfig) { c.Engine.ContextLength = 128 }})
		a := f.Good(fleet.ChatPath, `{"model":"tandem-sim","ignore_eos":true,"messages":[{"role":"user","content":"Hello"}]}`)
		usage := f.Parse(a.Body).Usage
		assert.True(t, usage != nil && usage.Total == 128, "%s: usage %+v, want the whole context of 128", input, usage)
		f.Idle()
	}
}

func TestNoPromptInLogs(t *testing.T) {
	f := fleet.New(t, fleet.Options{LogLevel: -8})
	const secret = "the launch code is swordfish"
	f.Post(fleet.ChatPath, `{"model":"tandem-sim","max_tokens":4,"messages":[{"role":"user","content":"`+secret+`"}]}`)
	f.Post(fleet.ChatPath, `{"model":"tandem-sim","max_tokens":"`+secret+`","messages":[{"role":"user","content":"`+secret+`"}]}`)
	f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":300000,"prompt":"`+secret+`"}`)
	f.Post(fleet.CompletionPath, `{"model":"absent","prompt":"`+secret+`"}`)
	log := f.Logs.String()
	require.True(t, strings.Contains(log, "msg=request") && strings.Contains(log, "Formula for prefill-"),
		"the log lacks the request or its formulas:\n%s", log)
	if i := strings.Index(log, "swordfish"); i >= 0 {
		t.Errorf("the log quotes a prompt: …%s…", log[max(0, i-200):i+20])
	}
}

// TestNoWorkerYet: before the first worker has joined a model may still appear, so the answer is a 503 with
// Retry-After, not a 404. Predicted caches are logged once for any number of workers, and not for one whose KV events
// are pending.
func TestNoWorkerYet(t *testing.T) {
	f := fleet.New(t, fleet.Options{Alone: true})
	a := f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"a"}`)
	if a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), `"no_worker"`) || a.Header.Get("Retry-After") < "5" {
		t.Errorf("%d, Retry-After %q: %s", a.Status, a.Header.Get("Retry-After"), a.Body)
	}
	for i, id := range []string{"publishes", "one", "two"} {
		w := pools.Worker{
			ID: id, Incarnation: "1", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://127.0.0.1:1",
			BlockSize: 16, DataParallelRanks: 1, ModelInput: "text",
		}
		if i == 0 {
			w.KVEvents, w.KVEndpoint = "zmq", "tcp://127.0.0.1:1"
		}
		f.Put(w)
		assert.Equal(t, min(i, 1), strings.Count(f.Logs.String(), "are predicted from where prompts are sent"),
			"%s: lines about predicted caches", id)
	}
	assert.Equal(t, http.StatusNotFound, f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"a"}`).Status,
		"with workers of another model, want 404")
	f.Put(pools.Worker{
		ID: "three", Incarnation: "1", Model: "n", Role: pools.Both, Engine: "vllm", Address: "http://127.0.0.1:1", BlockSize: 16,
		DataParallelRanks: 1, ModelInput: "text",
	})
	if a := f.Post("/v1/completions", `{"prompt":"a"}`); a.Status != http.StatusBadRequest ||
		!strings.Contains(string(a.Body), `"param":"model"`) {
		t.Errorf("of two models none is named: %d %s", a.Status, a.Body)
	}
}

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }

// TestOnlyListedHeadersReachEngines sends what browsers, proxies and attackers
// send and checks the exact set that each engine got.
func TestOnlyListedHeadersReachEngines(t *testing.T) {
	const trace, secret = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "sk-a-secret-of-the-client"
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1,
		Gateway: func(c *stack.GatewayConfig) { c.Edge.ForwardHeaders = []string{"x-tenant"} }})
	prefill, decode := f.Record("prefill-1"), f.Record("decode-1")
	hostile := []string{
		"Authorization", "Bearer " + secret, "Proxy-Authorization", "Basic " + secret, "Cookie", "session=" + secret, "X-Api-Key", secret,
		"X-Request-Id", "mine", "X-Data-Parallel-Rank", "7", "X-Forwarded-For", "10.0.0.1", "Forwarded", "for=10.0.0.1",
		"User-Agent", "theirs",
		"Accept", "text/plain", "Accept-Encoding", "gzip", "Accept-Language", "de", "Content-Language", "de", "Origin", "http://a",
		"Referer", "http://a/b",
		"X-Vllm-Priority", "-9", "X-Session-Id", "another's", "X-Override-Rid", "r", "X-Override-Bootstrap-Host", "10.0.0.1",
		"X-Override-Bootstrap-Room", "7",
		"X-Override-Routed-Dp-Rank", "1", "X-Override-Priority", "9", "X-Override-Conversation-Id", "c", "X-Smg-Target-Worker", "0",
		"Te", "trailers", "X-Other", "1", "X-Dynamo-Request-Priority", "3", "Baggage", "user=" + secret,
	}
	for name, tc := range map[string]struct {
		sent, passed []string
		stream       bool
	}{
		"nothing": {nil, nil, false},
		"all": {slices.Concat(hostile, []string{"traceparent", trace, "tracestate", "a=1", "x-tenant", "blue"}),
			[]string{"Traceparent", trace, "Tracestate", "a=1", "X-Tenant", "blue"}, false},
		"all, streamed": {slices.Concat(hostile, []string{"traceparent", trace, "x-tenant", "blue"}),
			[]string{"Traceparent", trace, "X-Tenant", "blue"}, true},
		"a malformed trace": {[]string{"traceparent", "00-zz", "tracestate", "a=1"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			body := `{"model":"tandem-sim","max_tokens":3,"ignore_eos":true,"prompt":"` + strings.Repeat("word ", 200) + `"`
			if tc.stream {
				body += `,"stream":true`
			}
			f.Good("/v1/completions", body+"}", tc.sent...)
			for leg, r := range map[string]*fleet.Recorder{"prefill": prefill, "decode": decode} {
				heads := r.Take()
				require.Len(t, heads, 1, "calls of %s", leg)
				got := heads[0]
				want := map[string]string{"User-Agent": "tandem", "Content-Type": "application/json",
					"Content-Length": got.Get("Content-Length"), "X-Request-Id": got.Get("X-Request-Id"),
					"Tandem-Gateway": got.Get("Tandem-Gateway")}
				if tc.stream && leg == "decode" {
					want["Accept"] = "text/event-stream"
				}
				for i := 0; i < len(tc.passed); i += 2 {
					want[tc.passed[i]] = tc.passed[i+1]
				}
				flat := map[string]string{}
				for name, values := range got {
					flat[name] = strings.Join(values, " and ")
				}
				assert.True(t, maps.Equal(flat, want), "%s got %v, want %v", leg, flat, want)
				if id := got.Get("X-Request-Id"); id == "" || strings.Contains(id, "mine") {
					t.Errorf("%s got the request id %q", leg, id)
				}
			}
		})
	}
	f.Eventually("the request's line has the trace's id", func() bool {
		return strings.Contains(f.Logs.String(), "trace_id=0af7651916cd43dd8448eb211c80319c")
	})
	assert.NotContains(t, f.Logs.String(), secret, "the log has the client's secret")
}

// TestWorkerKeyStaysWithAllowedHosts: a client of etcd can register any host. That host gets the workers' key and
// prompts only where it is allowed to; without --worker-allow that is this machine alone.
func TestWorkerKeyStaysWithAllowedHosts(t *testing.T) {
	elsewhere, err := discovery.ParseHosts([]string{"10.0.0.0/8"})
	require.NoError(t, err)
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
			spy := fleet.ServeHTTP(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				heads = append(heads, r.Header.Get("Authorization"))
				mu.Unlock()
				_, _ = io.WriteString(w, fleet.Whole)
			})
			f, links := fleet.NewRegistry(t, func(cfg *stack.GatewayConfig) {
				cfg.Upstream.BearerToken, cfg.Workers.Allow = "the-workers-key", c.allow
			})
			record := pools.Worker{
				ID: "spy", Incarnation: "1", Model: "m", Role: pools.Both, Engine: "vllm", Address: spy.URL, BlockSize: 16,
				ModelInput: "text",
			}
			value, err := json.Marshal(&record)
			require.NoError(t, err)
			_, err = links.Etcd.Put(t.Context(), discovery.Key(discovery.DefaultPrefix, &record), string(value))
			require.NoError(t, err)
			f.Eventually("the record has been looked at", func() bool {
				if c.want {
					return f.Status("/health") == http.StatusOK
				}
				return len(f.Gateway.Roster.Refused()) > 0
			})
			a := f.Post(fleet.CompletionPath, `{"model":"m","prompt":"secret","max_tokens":1}`)
			mu.Lock()
			defer mu.Unlock()
			assert.True(t, (len(heads) == 1 && heads[0] == "Bearer the-workers-key") == c.want && (c.want || len(heads) <= 0),
				"status %d, the record's host got %q", a.Status, heads)
		})
	}
}
