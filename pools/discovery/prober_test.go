package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
)

// stock answers as a stock engine does, by path. It can be ill, and it counts what it was asked.
type stock struct {
	*httptest.Server

	mu    sync.Mutex // guards all below
	faces map[string]string
	ill   int    // the status of every answer; 0 while well
	key   string // asked for, beside /health
	asked map[string]int

	gateway bool // says that it is one
}

func newStock(t *testing.T, faces map[string]string) *stock {
	s := &stock{faces: faces, asked: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(s.Close)
	return s
}

func (s *stock) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[r.URL.Path]++
	if s.gateway {
		w.Header().Set("Tandem-Gateway", "0011223344556677")
	}
	body, known := s.faces[r.URL.Path]
	switch {
	case s.ill == http.StatusFound:
		http.Redirect(w, r, "/elsewhere", s.ill)
	case s.ill != 0:
		w.WriteHeader(s.ill)
	case s.key != "" && r.URL.Path != "/health" && r.Header.Get("Authorization") != "Bearer "+s.key:
		w.WriteHeader(http.StatusUnauthorized)
	case !known:
		http.NotFound(w, r)
	default:
		fmt.Fprint(w, body)
	}
}

func (s *stock) set(change func(s *stock)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *stock) count(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[path]
}

const vllmMetrics = `# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="32",cache_dtype="auto",note="a \"quoted\" } brace",engine="0",num_gpu_blocks="2000"} 1.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="1",num_gpu_blocks="2000"} 1.0
vllm:num_requests_running{engine="0"} 3.0
process_start_time_seconds 1.7e+09
`

func vllm(model string) map[string]string {
	return map[string]string{
		"/health":  "",
		"/version": `{"version":"0.24.0"}`,
		"/metrics": vllmMetrics,
		"/v1/models": `{"object":"list","data":[{"id":"` + model +
			`","owned_by":"vllm","max_model_len":4096,"parent":null},{"id":"lora","owned_by":"vllm","parent":"` + model + `"}]}`,
	}
}

// mooncake is vLLM's prefill worker with Mooncake's bootstrap server, which has that to answer.
func mooncake(query string) map[string]string {
	faces := vllm("m")
	faces["/query"] = query
	return faces
}

func sglang(model string) map[string]string {
	return map[string]string{
		"/health":      "",
		"/v1/models":   `{"object":"list","data":[{"id":"` + model + `","owned_by":"sglang","max_model_len":8192}]}`,
		"/server_info": `{"page_size":64,"max_total_num_tokens":640000,"max_running_requests":48,"chunked_prefill_size":8192,"dp_size":1,"tp_size":2,"disaggregation_mode":"decode","random_seed":7,"version":"0.5.20"}`,
	}
}

// sglangAs is sglang in another mode, with more to report.
func sglangAs(mode, more string) map[string]string {
	faces := sglang("m")
	faces["/server_info"] = "{" + more + strings.Replace(faces["/server_info"][1:], "decode", mode, 1)
	return faces
}

// trtllm is TensorRT-LLM with that version and hand-off in its reports.
func trtllm(version, params string) map[string]string {
	return map[string]string{
		"/health": "", "/v1/models": `{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}`, "/metrics": "[]", "/kv_cache_events": "[]",
		"/version": `{"version":` + version + `}`, "/server_info": `{"disaggregated_params":` + params + `}`,
	}
}

// prober runs a Prober over texts, each a role and an endpoint, and gives the roster it tells.
func prober(t *testing.T, cfg ProberConfig, texts ...string) (*pools.Roster, *Prober, *logged) {
	t.Helper()
	logs := &logged{}
	log := slog.New(slog.NewTextHandler(logs, nil))
	roster := pools.NewRoster(pools.Config{}, log)
	if cfg.Every == 0 {
		cfg.Every, cfg.Timeout = 10*time.Millisecond, 5*time.Second
	}
	p := NewProber(roster.From("flags"), cfg, log)
	p.Set(list(t, texts...))
	running(t, p.Run)
	return roster, p, logs
}

// running runs f until the test ends.
func running(t *testing.T, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, f(ctx)) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func list(t *testing.T, texts ...string) (es []Endpoint) {
	t.Helper()
	for _, s := range texts {
		role, s, _ := strings.Cut(s, " ")
		e, err := ParseEndpoint(pools.Role(role), s)
		require.NoError(t, err)
		es = append(es, e)
	}
	return es
}

// logged is a log.
type logged struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// count is how often it has a text.
func (l *logged) count(text string) int { return strings.Count(l.String(), text) }

// member waits for the worker w1 to be there, as condition says.
func member(t *testing.T, r *pools.Roster, what string, condition func(w *pools.Worker) bool) *pools.Worker {
	t.Helper()
	var got *pools.Worker
	within(t, what, func() bool {
		m, ok := r.Lookup("w1")
		got = m.Worker
		return ok && condition(got)
	})
	return got
}

func anyWorker(*pools.Worker) bool { return true }

func TestReportedLimits(t *testing.T) {
	unnamed := func(faces map[string]string) map[string]string {
		faces["/v1/models"] = `{"data":[{"id":"m","owned_by":"someone"}]}`
		return faces
	}
	v := pools.Worker{
		Model: "m", Engine: "vllm", EngineVersion: "0.24.0", Adapters: []string{"lora"}, BlockSize: 32, TotalKVBlocks: 1000,
		ContextLength: 4096, DataParallelRanks: 2,
	}
	g := pools.Worker{
		Model: "m", Engine: "sglang", EngineVersion: "0.5.20", BlockSize: 64, TotalKVBlocks: 10000, MaxNumSeqs: 48,
		MaxNumBatchedTokens: 8192, ContextLength: 8192,
	}
	r := pools.Worker{Model: "m", Engine: "trtllm", BlockSize: 32}
	with := func(w pools.Worker, change func(w *pools.Worker)) pools.Worker { change(&w); return w }
	const port, priority = `"disaggregation_bootstrap_port":9001,`, `"enable_priority_scheduling":true,"schedule_low_priority_values_first":`
	caching := vllm("m") // as CacheConfig.metrics_info of vLLM 0.32 spells it
	caching["/metrics"] = strings.ReplaceAll(vllmMetrics, `cache_dtype=`, `enable_prefix_caching="True",cache_dtype=`)
	const radix = `"disaggregation_decode_enable_radix_cache":true,` // as server_info of 0.5.23 spells it (../shared/vectors/sglang-0.5.23)
	names := func(data string) map[string]string { return map[string]string{"/v1/models": `{"data":[` + data + `]}`} }
	old := names(`{"id":"m","owned_by":"sglang"}`)
	old["/get_server_info"] = `{"page_size":1,"max_total_num_tokens":12800,"max_running_requests":null,"dp_size":4,"disaggregation_mode":"null"}`
	for _, test := range []struct {
		name, role, options string
		faces               map[string]string
		want                pools.Worker
	}{
		{"vllm", "prefill", "", vllm("m"), v},
		{"vllm by its metrics", "prefill", "", unnamed(vllm("m")), with(v, func(w *pools.Worker) { w.Adapters, w.ContextLength = nil, 0 })},
		{"vllm's adapter", "prefill", ",model=lora", vllm("m"), with(v, func(w *pools.Worker) { w.Model, w.Adapters = "lora", nil })},
		{
			"several names of one model", "both", "",
			names(`{"id":"m","owned_by":"vllm","root":"/w"},{"id":"z","owned_by":"vllm","root":"/w"},{"id":"lora","parent":"m","root":"/l"},{"id":"b","owned_by":"vllm","root":"/w"}`),
			pools.Worker{Model: "m", ServedNames: []string{"b", "z"}, Adapters: []string{"lora"}, Engine: "vllm", BlockSize: 16},
		},
		{
			"one of several names", "both", ",model=b", names(`{"id":"m","owned_by":"vllm","root":"/w"},{"id":"b","owned_by":"vllm","root":"/w"}`),
			pools.Worker{Model: "b", Engine: "vllm", BlockSize: 16},
		},
		{"what was given wins", "prefill", ",block-size=16,context-length=99,ranks=1,device=h100", vllm("m"), with(v, func(w *pools.Worker) {
			w.BlockSize, w.TotalKVBlocks, w.ContextLength, w.DataParallelRanks, w.DeviceClass = 16, 2000, 99, 1, "h100"
		})},
		{
			"vllm's Mooncake prefill", "prefill", ",connector=vllm-mooncake,transfer=SELF",
			mooncake(`{"1":{"engine_id":"e_dp1","worker_addr":{"0":{"0":"tcp://h:1"}}},"0":{"engine_id":"e_dp0"}}`), with(v, func(w *pools.Worker) {
				w.Connector, w.Transfer, w.TransferIDs = "vllm-mooncake", "SELF", []string{"e_dp0", "e_dp1"}
			}),
		},
		{"vllm's Mooncake decode", "decode", ",connector=vllm-mooncake", vllm("m"),
			with(v, func(w *pools.Worker) { w.Connector = "vllm-mooncake" })},
		{"sglang", "decode", "", sglang("m"), g},
		{"sglang by its server_info", "decode", "", unnamed(sglang("m")), with(g, func(w *pools.Worker) { w.ContextLength = 0 })},
		{
			"old sglang with pages of a token", "both", "", old,
			pools.Worker{Model: "m", Engine: "sglang", BlockSize: 128, PageSize: 1, TotalKVBlocks: 100, DataParallelRanks: 4},
		},
		{"sglang's prefill mode", "prefill", "", sglangAs("prefill", port), with(g, func(w *pools.Worker) { w.Transfer = "127.0.0.1:9001" })},
		{"sglang by priority", "decode", "", sglangAs("decode", priority+"false,"), with(g, func(w *pools.Worker) { w.Prioritizes = true })},
		{"sglang by priority, the other way", "decode", "", sglangAs("decode", priority+"true,"), g},
		{"sglang's decode mode with a prefix cache", "decode", "", sglangAs("decode", radix),
			with(g, func(w *pools.Worker) { w.FetchesRest = true })},
		{"its prefill mode, which has one anyway", "prefill", "", sglangAs("prefill", radix), g},
		{"vllm's decode with a prefix cache", "decode", "", caching, with(v, func(w *pools.Worker) { w.FetchesRest = true })},
		{"vllm's prefill with one", "prefill", "", caching, v},
		{"its bootstrap server given", "prefill", ",transfer=10.0.0.9:9002", sglangAs("prefill", port),
			with(g, func(w *pools.Worker) { w.Transfer = "10.0.0.9:9002" })},
		{"a bootstrap port of no prefill worker", "decode", "", sglangAs("decode", port), g},
		{"a bootstrap port that is none", "prefill", "", sglangAs("prefill", `"disaggregation_bootstrap_port":90010,`), g},
		{"trtllm", "both", "", names(`{"id":"m","owned_by":"tensorrt_llm"}`), r},
		{
			"trtllm's release and context endpoint", "both", ",block-size=64",
			trtllm(`"1.2.0"`, `{"ctx_info_endpoint":["tcp://10.0.0.1:4711","tcp://10.0.0.1:4712"],"ctx_dp_rank":0}`), with(r, func(w *pools.Worker) {
				w.BlockSize, w.EngineVersion, w.TransferIDs = 64, "1.2.0", []string{"tcp://10.0.0.1:4711"}
			}),
		},
		{
			"trtllm's context endpoint in text, of another rank", "both", "",
			trtllm(`null`, `{"ctx_info_endpoint":"tcp://[::1]:4711","ctx_dp_rank":2}`),
			with(r, func(w *pools.Worker) { w.TransferIDs = []string{"", "", "tcp://[::1]:4711"} }),
		},
		{"trtllm without a transceiver", "both", "", trtllm(`7`, `null`), r},
		{"trtllm with an endpoint that is none", "both", "", trtllm(`"a\nb"`, `{"ctx_info_endpoint":["ipc:///tmp/x"],"ctx_dp_rank":0}`), r},
		{"trtllm with a rank that is none", "both", "", trtllm(`""`, `{"ctx_info_endpoint":["tcp://h:1"],"ctx_dp_rank":-1}`), r},
		{"nothing but health", "both", ",model=m,engine=vllm", map[string]string{"/health": ""},
			pools.Worker{Model: "m", Engine: "vllm", BlockSize: 16}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStock(t, test.faces)
			self := func(text string) string {
				return strings.ReplaceAll(text, "SELF", strings.TrimPrefix(s.URL, "http://"))
			}
			var cfg ProberConfig
			if test.want.PageSize > 0 { // pages of a token leave a block's size to the operator
				cfg.BlockSize = test.want.BlockSize
			}
			r, _, _ := prober(t, cfg, test.role+" "+s.URL+",id=w1"+self(test.options))
			want := test.want
			want.Transfer = self(want.Transfer)
			want.ID, want.Role, want.Address, want.ModelInput, want.KVEvents = "w1", pools.Role(test.role), s.URL, "text", "none"
			got := member(t, r, "the worker's own record", func(w *pools.Worker) bool {
				want.Incarnation = w.Incarnation
				return w.Equal(&want)
			})
			assert.NotEmpty(t, got.Incarnation, "no incarnation")
			assert.True(t, want.Engine != "trtllm" || s.count("/metrics")+s.count("/kv_cache_events") <= 0,
				"TensorRT-LLM's metrics were taken from whoever reads them")
		})
	}
}

// A prefill worker of which decode could not know the engine has not joined: it is asked again.
func TestMooncakeJoinsWithItsEngineIDs(t *testing.T) {
	for _, query := range []string{``, `{}`, `[]`, `{"1":{"engine_id":"e"}}`, `{"0":{"engine_id":""}}`, `{"0":{"engine_id":"a\nb"}}`,
		`{"0":{"engine_id":7}}`} {
		s := newStock(t, mooncake(query))
		r, _, _ := prober(t, ProberConfig{}, "prefill "+s.URL+",id=w1,connector=vllm-mooncake,transfer="+strings.TrimPrefix(s.URL, "http://"))
		within(t, "it is asked again", func() bool { return s.count("/query") > 2 })
		_, ok := r.Lookup("w1")
		assert.False(t, ok, "%s: joined", query)
		s.set(func(s *stock) { s.faces["/query"] = `{"0":{"engine_id":"e"}}` })
		member(t, r, "it joins once it answers", func(w *pools.Worker) bool { return len(w.TransferIDs) == 1 && w.TransferIDs[0] == "e" })
	}
}

func TestUnusableAnswersAreRefusedOnce(t *testing.T) {
	names := func(data string) map[string]string {
		return map[string]string{"/health": "", "/v1/models": `{"data":[` + data + `]}`}
	}
	for _, test := range []struct {
		name, role string
		faces      map[string]string
		options    string
		want       string
	}{
		{"two models", "both", names(`{"id":"a","owned_by":"vllm"},{"id":"b","owned_by":"vllm"}`), "",
			`serves "a", "b": set model= to one of them`},
		{"another model", "both", names(`{"id":"a","owned_by":"vllm"}`), ",model=b", `serves "a", not model=b`},
		{"a name of two lines", "both", names(`{"id":"a\r\nb","owned_by":"vllm"}`), "", `serves "a\r\nb": a model's name is`},
		{"a long name", "both", names(`{"id":"` + strings.Repeat("a", 1<<20) + `","owned_by":"vllm"}`), "", "a model's name is 1 to 256"},
		{"no list", "both", names(`<html>`), "", "something else than a list of models"},
		{"no model", "both", names(``), "", "something else than a list of models"},
		{"unknown engine", "both", names(`{"id":"a"}`), "", "unknown engine: set engine="},
		{"decode as prefill", "prefill", sglangAs("decode", ""), "", "runs with --disaggregation-mode decode and is listed as prefill"},
		{"prefill as both", "both", sglangAs("prefill", ""), "", "runs with --disaggregation-mode prefill and is listed as both"},
		{
			"both as prefill", "prefill", sglangAs("null", ""), "",
			"runs without --disaggregation-mode and is listed as prefill: start it with --disaggregation-mode prefill, or list it as both",
		},
		{"both as decode", "decode", sglangAs("null", ""), "", "runs without --disaggregation-mode and is listed as decode"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStock(t, test.faces)
			r, _, logs := prober(t, ProberConfig{}, test.role+" "+s.URL+",id=w1"+test.options)
			within(t, "refused", func() bool {
				refused := r.Refused()
				if len(refused) != 1 {
					return false
				}
				_, typed := errors.AsType[*answerError](refused[0].Err)
				return typed && refused[0].Source == "flags" && strings.Contains(refused[0].Err.Error(), test.want)
			})
			if test.faces["/server_info"] != "" {
				return // another engine would be another worker
			}
			before := s.count("/v1/models")
			within(t, "asked on", func() bool { return s.count("/v1/models") > before+3 })
			assert.Equal(t, 1, logs.count("worker refused"), "%s", logs)
			s.set(func(s *stock) { s.faces = vllm("b") })
			member(t, r, "taken when it answers well", func(w *pools.Worker) bool { return w.Model == "b" && w.BlockSize == 32 })
			assert.Empty(t, r.Refused(), "still refused")
		})
	}
}

func TestWorkersAreTakenOutAndComeBack(t *testing.T) {
	s := newStock(t, vllm("m"))
	r, _, logs := prober(t, ProberConfig{}, "both "+s.URL+",id=w1")
	first := member(t, r, "in", anyWorker).Incarnation
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusFound, http.StatusInternalServerError} {
		s.set(func(s *stock) { s.ill = status })
		within(t, "out", func() bool { _, in := r.Lookup("w1"); return !in })
		s.set(func(s *stock) { s.ill = 0 })
		next := member(t, r, "in again", anyWorker).Incarnation
		assert.NotEqual(t, first, next, "a worker came back as the same incarnation")
		first = next
	}
	assert.LessOrEqual(t, s.count("/elsewhere"), 0, "a redirect was followed")
	assert.Equal(t, 3, logs.count("worker removed"), "%s", logs)
}

func TestAnotherProcessIsAnotherIncarnation(t *testing.T) {
	s := newStock(t, vllm("m"))
	// Failures would take it out only after a very long time: what is seen here is seen without.
	r, _, _ := prober(t, ProberConfig{Failures: 1 << 30}, "both "+s.URL+",id=w1")
	first := member(t, r, "in", anyWorker).Incarnation
	asked := s.count("/metrics")
	s.CloseClientConnections()
	within(t, "asked everything over a new connection", func() bool { return s.count("/metrics") > asked })
	m, _ := r.Lookup("w1")
	assert.Equal(t, first, m.Worker.Incarnation, "a lost connection alone made another incarnation")
	s.set(func(s *stock) {
		s.faces["/metrics"] = strings.Replace(vllmMetrics, "1.7e+09", "1.8e+09", 1)
	})
	s.CloseClientConnections()
	second := member(t, r, "another start", func(w *pools.Worker) bool { return w.Incarnation != first }).Incarnation
	s.set(func(s *stock) {
		s.faces["/metrics"] = strings.ReplaceAll(vllmMetrics, `"2000"`, `"1000"`)
	})
	s.CloseClientConnections()
	member(t, r, "other limits", func(w *pools.Worker) bool { return w.Incarnation != second && w.TotalKVBlocks == 500 })
}

func TestModelGivenJoinsAtOnce(t *testing.T) {
	s := newStock(t, vllm("m"))
	s.set(func(s *stock) { s.ill = http.StatusServiceUnavailable })
	r, _, _ := prober(t, ProberConfig{Failures: 1 << 30}, "both "+s.URL+",id=w1,model=m")
	early := member(t, r, "in before it answers", anyWorker)
	assert.True(t, early.BlockSize == defaultBlockSize && early.TotalKVBlocks == 0, "joined as %+v", early)
	s.set(func(s *stock) { s.ill = 0 })
	late := member(t, r, "with its limits", func(w *pools.Worker) bool { return w.TotalKVBlocks == 1000 })
	assert.Equal(t, early.Incarnation, late.Incarnation, "its first answer made another incarnation")
}

func TestSilentWorkersJoinNothing(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	r, p, logs := prober(t, ProberConfig{Every: 5 * time.Millisecond}, "both "+gone.URL+",id=w1", "both "+gone.URL+",id=w2,model=m")
	within(t, "the one that joined at once goes", func() bool {
		_, in := r.Lookup("w2")
		return !in && r.Known("m", pools.Both)
	})
	_, in := r.Lookup("w1")
	assert.False(t, in, "a worker that never answered is in")
	assert.Equal(t, 1, logs.count("w1"), "%s", logs)
	p.Set(nil)
	within(t, "gone", func() bool { return len(r.Models()) == 0 })
}

func TestKeyIsSent(t *testing.T) {
	s := newStock(t, vllm("m"))
	s.set(func(s *stock) { s.key = "secret-key" })
	r, _, _ := prober(t, ProberConfig{APIKey: "secret-key"}, "both "+s.URL+",id=w1")
	member(t, r, "in", anyWorker)
	r, _, logs := prober(t, ProberConfig{APIKey: "other-key"}, "both "+s.URL+",id=w1")
	within(t, "refused", func() bool {
		return len(r.Refused()) == 1 && strings.Contains(r.Refused()[0].Err.Error(), "--worker-api-key-file")
	})
	assert.NotContains(t, logs.String(), "other-key", "the log tells the key")
}

// A gateway answers as a worker does, and is none: requests to it would come back.
func TestGatewaysAreNoWorkers(t *testing.T) {
	s := newStock(t, vllm("m"))
	s.set(func(s *stock) { s.gateway = true })
	for name, status := range map[string]int{"ready": 0, "not ready": http.StatusServiceUnavailable} {
		s.set(func(s *stock) { s.ill = status })
		r, _, _ := prober(t, ProberConfig{Failures: 1 << 30}, "both "+s.URL+",id=asked",
			"both "+strings.Replace(s.URL, "127.0.0.1", "localhost", 1)+",id=given,model=m")
		within(t, name+": both refused", func() bool { return len(r.Refused()) == 2 })
		for _, refused := range r.Refused() {
			if _, in := r.Lookup(refused.Worker.ID); in || !strings.Contains(refused.Err.Error(), "is a gateway") {
				t.Errorf("%s: %q in: %v; %v", name, refused.Worker.ID, in, refused.Err)
			}
		}
	}
	// Another process may come in its place.
	s.set(func(s *stock) { s.gateway, s.ill = false, 0 })
	r, _, _ := prober(t, ProberConfig{}, "both "+s.URL+",id=w1")
	member(t, r, "an engine in its place", anyWorker)
}

func TestAnswersAreBounded(t *testing.T) {
	faces := vllm("m")
	faces["/metrics"] = strings.Repeat("x", maxAnswerBytes+1)
	s := newStock(t, faces)
	r, _, logs := prober(t, ProberConfig{}, "both "+s.URL+",id=w1")
	within(t, "said", func() bool { return strings.Contains(logs.String(), "longer than") })
	_, in := r.Lookup("w1")
	assert.False(t, in, "taken in")
}

func TestSetChangesTheList(t *testing.T) {
	a, b := newStock(t, vllm("m")), newStock(t, vllm("m"))
	r, p, _ := prober(t, ProberConfig{}, "both "+a.URL+",id=a", "both "+b.URL+",id=b")
	within(t, "both in", func() bool {
		_, inA := r.Lookup("a")
		_, inB := r.Lookup("b")
		return inA && inB
	})
	kept, _ := r.Lookup("a")
	p.Set(list(t, "both "+a.URL+",id=a", "both "+b.URL+",id=b,device=h100"))
	within(t, "b is asked again", func() bool {
		m, in := r.Lookup("b")
		return in && m.Worker.DeviceClass == "h100"
	})
	p.Set(list(t, "both "+a.URL+",id=a"))
	within(t, "b is out", func() bool { _, in := r.Lookup("b"); return !in })
	now, _ := r.Lookup("a")
	assert.True(t, now.Worker == kept.Worker, "a was not left alone")
}

// The core by itself.
func TestPulse(t *testing.T) {
	f, g := facts{model: "m", born: "1"}, facts{model: "m", born: "2"}
	p := pulse{limit: 3}
	fails := func(times int) (out int) { // how often one of so many failures took it out
		for range times {
			if p.failed(false, false) {
				out++
			}
		}
		return out
	}
	assert.LessOrEqual(t, fails(4), 0, "a worker that was never in went out")
	assert.True(t, p.answered(f) && p.steady(), "the first answer is no process")
	assert.False(t, p.answered(f), "the same process is another")
	assert.True(t, p.answered(g), "another process is the same")
	assert.True(t, fails(2) <= 0 && !p.steady() && !p.answered(g), "two failures are three")
	assert.True(t, fails(2) <= 0 && fails(1) == 1 && fails(1) <= 0, "the third failure is not the one that takes it out")
	assert.True(t, p.answered(g), "it came back as it was")
	assert.True(t, !p.failed(true, false) && p.answered(g) && !p.answered(g), "a closed port is one other process")
}

func FuzzFacts(f *testing.F) {
	f.Add([]byte(vllmMetrics))
	f.Add([]byte(sglang("m")["/server_info"]))
	f.Add([]byte(vllm("m")["/v1/models"]))
	f.Add([]byte(`vllm:cache_config_info{block_size="`))
	f.Add([]byte(`{"data":[{"id":"","max_model_len":1e99}],"page_size":-1,"dp_size":1e9}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, read := range []func(f *facts){
			func(f *facts) { f.readMetrics(body) },
			func(f *facts) { f.readServerInfo(body) },
			func(f *facts) { _, _ = f.readModels(body, "") },
		} {
			reported := facts{}
			read(&reported)
			w, _ := reported.record(pools.Worker{ID: "w", Role: pools.Both, Address: "http://h:1", Model: "m"}, 0)
			// A block beyond all bounds is for the roster to refuse by name.
			invalid, ok := errors.AsType[*pools.InvalidError](w.Validate())
			assert.False(t, ok && invalid.Field != "block_size", "%q: %v", body, invalid)
		}
	})
}

// A worker that is suspected is asked everything at once, and reported as another process though it says the same.
func TestSuspectedWorkersAreReportedAgain(t *testing.T) {
	s := newStock(t, vllm("m"))
	r, p, _ := prober(t, ProberConfig{Every: time.Hour, Timeout: 5 * time.Second}, "both "+s.URL+",id=w1")
	first := member(t, r, "in", anyWorker).Incarnation
	long := time.Now().Add(-time.Hour)
	p.Suspect("unknown", time.Time{})
	p.Suspect("w1", long) // it is another since then
	p.Suspect("w1", time.Time{})
	second := member(t, r, "another", func(w *pools.Worker) bool { return w.Incarnation != first }).Incarnation
	p.Suspect("w1", time.Time{})
	member(t, r, "another again", func(w *pools.Worker) bool { return w.Incarnation != first && w.Incarnation != second })
}

// A suspicion that came while one of longer ago waited was forgotten with it.
func TestTheLatestSuspicionCounts(t *testing.T) {
	early := time.Now()
	late := early.Add(time.Second)
	for _, order := range [][]time.Time{{early, late}, {late, early}} {
		f := &probe{suspected: make(chan time.Time, 1)}
		for _, since := range order {
			f.suspect(since)
		}
		assert.Equal(t, late, <-f.suspected, "of %v", order)
	}
}

// Where it is to be asked first, a model that was given does not let a worker in that has not answered; each question is
// reported.
func TestAskFirst(t *testing.T) {
	s := newStock(t, vllm("m"))
	s.set(func(s *stock) { s.ill = http.StatusServiceUnavailable })
	var failed, well atomic.Int32
	cfg := ProberConfig{AskFirst: true, OnBeat: func(id string, err error) {
		if err == nil && id == "w1" {
			well.Add(1)
		} else if strings.Contains(fmt.Sprint(err), "503") {
			failed.Add(1)
		}
	}}
	r, _, _ := prober(t, cfg, "both "+s.URL+",id=w1,model=m")
	within(t, "a failure is reported", func() bool { return failed.Load() > 0 })
	_, in := r.Lookup("w1")
	assert.False(t, in, "it is in before it answered")
	s.set(func(s *stock) { s.ill = 0 })
	member(t, r, "in", anyWorker)
	within(t, "an answer is reported", func() bool { return well.Load() > 0 })
}
