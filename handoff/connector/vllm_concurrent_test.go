package connector

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// concurrentPair is a round of two vLLM workers that are called at once. Prefill has two ranks; the second computes.
func concurrentPair() Round {
	r := pair("text")
	r.TransferID, r.PRank = 4611686018427387905, 1
	r.P.DataParallelRanks, r.P.TransferIDs = 2, []string{"e_dp0", "e_dp1"}
	r.P.Transfer, r.P.TensorParallel, r.P.PipelineParallel = "10.0.0.1:8998", 4, 2
	return r
}

// A loopback address is prefill's own view of itself: decode gets the host at which the gateway reaches it.
func TestVLLMConcurrentLoopback(t *testing.T) {
	r := carrying(concurrentPair(), scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil)
	r.P.Address, r.P.Transfer = "http://10.0.0.5:8000", "localhost:9000"
	for _, c := range []struct {
		connector Connector
		want      string
	}{{Mooncake{}, `"http://10.0.0.5:9000"`}, {NIXLPush{}, `"remote_host":"10.0.0.5","remote_port":9001`}} {
		plan, err := c.connector.Plan(r)
		if err != nil || !strings.Contains(string(plan.Decode.Body.AppendTo(nil)), c.want) {
			t.Errorf("%v: %s, want %s", err, plan.Decode.Body.AppendTo(nil), c.want)
		}
	}
}

// What prefill and decode carry so that they find each other, byte for byte.
func TestVLLMConcurrentPlans(t *testing.T) {
	const head = `{"model":"m","prompt":"hi","stream":`
	const one = head + `false,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":`
	for name, c := range map[string]struct {
		connector       Connector
		prefill, decode string
	}{
		"mooncake": {
			Mooncake{},
			`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-4611686018427387905"}`,
			`{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-4611686018427387905",` +
				`"remote_engine_id":"e_dp1","remote_bootstrap_addr":"http://10.0.0.1:8998"}`,
		},
		"push": {
			NIXLPush{}, string(prefillParams),
			`{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e_dp1","remote_host":"10.0.0.1","remote_port":8999,` +
				`"tp_size":4,"pp_size":2,"remote_request_id":"0123456789abcdef-1"}`,
		},
	} {
		r := carrying(concurrentPair(), scan(t, openai.Completions, `{"model":"m","prompt":"hi","stream":true,"max_tokens":9}`), nil)
		plan, err := c.connector.Plan(r)
		if err != nil || plan.Order != Together {
			t.Fatalf("%s: %v %v", name, plan.Order, err)
		}
		if got, want := string(plan.Prefill.Body.AppendTo(nil)), one+c.prefill+`}`; got != want {
			t.Errorf("%s, prefill:\n got %s\nwant %s", name, got, want)
		}
		if got, want := string(plan.Decode.Body.AppendTo(nil)), head+`true,"max_tokens":9,"kv_transfer_params":`+c.decode+`}`; got != want {
			t.Errorf("%s, decode:\n got %s\nwant %s", name, got, want)
		}
		if plan.Prefill.RequestID != r.ID || plan.Decode.RequestID != r.ID || plan.Prefill.Rank != 1 || plan.Decode.Rank != -1 || plan.Prefill.Stream || !plan.Decode.Stream {
			t.Errorf("%s: %+v %+v", name, plan.Prefill, plan.Decode)
		}
		kv, whole, err := c.connector.OnPrefill(r, prefill.ReadAnswer([]byte(`{"choices":[],"kv_transfer_params":{"x":1}}`)), time.Now())
		if kv.Params != nil || whole || err != nil {
			t.Errorf("%s: %+v %v %v", name, kv, whole, err)
		}
		before := plan.Decode.Body.Len()
		if c.connector.Bind(&plan.Decode, kv); plan.Decode.Body.Len() != before {
			t.Errorf("%s binds something", name)
		}
	}
}

// Only KV that prefill holds is released, and each engine in the way that it acts on.
func TestVLLMConcurrentAbandon(t *testing.T) {
	for _, ep := range []struct {
		endpoint openai.Endpoint
		body     string
	}{
		{openai.Completions, `{"model":"m","prompt":"hi","stream":true,"max_tokens":9,"logprobs":2}`},
		{openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":9}`},
	} {
		r := carrying(concurrentPair(), scan(t, ep.endpoint, ep.body), nil)
		for name, c := range map[string]Connector{"mooncake": Mooncake{}, "push": NIXLPush{}} {
			r.Held = false
			if legs := c.Abandon(r, prefill.KV{}); len(legs) != 0 {
				t.Errorf("%s: %d calls for KV that is not held", name, len(legs))
			}
			r.Held = true
			legs := c.Abandon(r, prefill.KV{})
			if len(legs) != 1 || legs[0].Purpose != fault.Release || legs[0].Worker != "d2" || legs[0].Path != ep.endpoint.Path() || legs[0].Stream {
				t.Fatalf("%s: %+v", name, legs)
			}
			var sent struct {
				Model     string          `json:"model"`
				Prompt    string          `json:"prompt"`
				Messages  json.RawMessage `json:"messages"`
				MaxTokens int             `json:"max_tokens"`
				Stream    bool            `json:"stream"`
				KV        json.RawMessage `json:"kv_transfer_params"`
			}
			if err := json.Unmarshal(legs[0].Body.AppendTo(nil), &sent); err != nil {
				t.Fatal(err)
			}
			plan, err := c.Plan(r)
			if err != nil {
				t.Fatal(err)
			}
			if whole := string(plan.Decode.Body.AppendTo(nil)); sent.MaxTokens != 1 || sent.Stream || !strings.Contains(whole, string(sent.KV)) || (sent.Prompt == "") != (ep.endpoint == openai.Chat) || (sent.Messages == nil) == (ep.endpoint == openai.Chat) {
				t.Errorf("%s: %s", name, legs[0].Body.AppendTo(nil))
			}
			// Mooncake takes the KV over; push has the engine refuse, and knows the request by its id.
			if refused := sent.Model == releaseModel; refused != (name == "push") || (legs[0].RequestID == r.ID) != (name == "push") {
				t.Errorf("%s: model %q, id %q", name, sent.Model, legs[0].RequestID)
			}
		}
	}
}

// A pair of which one could not find the other is refused where it is chosen, with the reason.
func TestVLLMConcurrentPairs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p, d *pools.Worker)
		why    string
	}{
		"nothing":          {func(p, d *pools.Worker) {}, ""},
		"no endpoint":      {func(p, d *pools.Worker) { p.Transfer = "" }, "transfer"},
		"a rank unknown":   {func(p, d *pools.Worker) { p.TransferIDs = p.TransferIDs[:1] }, "1 of its 2 ranks"},
		"block sizes":      {func(p, d *pools.Worker) { p.BlockSize = 32 }, "blocks of 32"},
		"another release":  {func(p, d *pools.Worker) { p.EngineVersion, d.EngineVersion = "0.30.0", "0.31.0" }, "same release"},
		"decode's are not": {func(p, d *pools.Worker) { d.Transfer, d.TransferIDs = "", nil }, ""},
	} {
		for _, connector := range []string{"vllm-mooncake", "vllm-nixl-push"} {
			r := concurrentPair()
			r.P.Connector, r.D.Connector, r.P.BlockSize, r.D.BlockSize = connector, connector, 16, 16
			c.change(r.P, r.D)
			_, err := Between(r.P, r.D)
			if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
				t.Errorf("%s, %s: %v", connector, name, err)
			}
		}
	}
	p, d := concurrentPair().P, concurrentPair().D
	p.Connector, d.Connector = "vllm-mooncake", "vllm-nixl-push"
	if _, err := Between(p, d); err == nil || !strings.Contains(err.Error(), "vllm-mooncake") {
		t.Errorf("two connectors: %v", err)
	}
}

// Through a store nothing is handed over: prefill's leg is one token, decode's is the client's, and nothing is to be freed.
func TestLMCachePlan(t *testing.T) {
	r := carrying(pair("text"), scan(t, openai.Completions, `{"model":"m","prompt":"hi","stream":true,"max_tokens":9,"stop":["x"]}`), nil)
	plan, err := LMCache{}.Plan(r)
	if err != nil || plan.Order != PrefillFirst {
		t.Fatal(plan.Order, err)
	}
	for name, got := range map[string][2]string{
		"prefill": {string(plan.Prefill.Body.AppendTo(nil)), `{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"ignore_eos":true}`},
		"decode":  {string(plan.Decode.Body.AppendTo(nil)), `{"model":"m","prompt":"hi","stream":true,"max_tokens":9,"stop":["x"]}`},
	} {
		if got[0] != got[1] {
			t.Errorf("%s:\n got %s\nwant %s", name, got[0], got[1])
		}
	}
	now := time.Unix(1000, 0)
	kv, whole, err := LMCache{}.OnPrefill(r, prefill.ReadAnswer([]byte(`{}`)), now)
	if err != nil || whole || kv.Producer != "p1" || !kv.Bindable(now.Add(time.Minute)) || len(LMCache{}.Abandon(r, kv)) != 0 {
		t.Errorf("%+v %v %v", kv, whole, err)
	}
	r.P = nil
	if plan, err := (LMCache{}).Plan(r); err != nil || plan.Prefill.Body != nil {
		t.Errorf("of stored KV: %+v, %v", plan, err)
	}
}

// A vLLM worker that schedules by priority gets the request's, with the sign turned: there the lower is first.
func TestVLLMPriority(t *testing.T) {
	for _, c := range []struct {
		given     *int32
		p, d      bool
		prefilled string
		decoded   string
	}{
		{nil, true, true, "", ""},
		{new(int32(7)), false, false, "", ""},
		{new(int32(7)), true, true, `,"priority":-7`, `,"priority":-7`},
		{new(int32(math.MinInt32)), false, true, "", `,"priority":2147483648`},
	} {
		r := carrying(pair("text"), scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil)
		r.Priority, r.P.Prioritizes, r.D.Prioritizes = c.given, c.p, c.d
		for name, connector := range map[string]Connector{"nixl": NIXL{}, "lmcache": LMCache{}} {
			plan, err := connector.Plan(r)
			if err != nil {
				t.Fatal(err)
			}
			for leg, got := range map[string][2]string{"prefill": {string(plan.Prefill.Body.AppendTo(nil)), c.prefilled}, "decode": {string(plan.Decode.Body.AppendTo(nil)), c.decoded}} {
				if strings.Contains(got[0], "priority") != (got[1] != "") || !strings.Contains(got[0], got[1]) {
					t.Errorf("%s, %s: %s, want %q", name, leg, got[0], got[1])
				}
			}
		}
	}
}
