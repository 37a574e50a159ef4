package connector

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// mooncakePair is a round of two vLLM workers. Prefill has two ranks; the second computes.
func mooncakePair() Round {
	r := pair("text")
	r.TransferID, r.PRank = 4611686018427387905, 1
	r.P.DataParallelRanks, r.P.TransferIDs = 2, []string{"e_dp0", "e_dp1"}
	r.P.Transfer = "10.0.0.1:8998"
	return r
}

// pushed is what a prefill engine of NixlPushConnector answers (vLLM 0.32).
const pushed = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5]],"remote_engine_id":"p-1",` +
	`"remote_request_id":"cmpl-0123456789abcdef-1-0-87ebc034","remote_host":"10.0.0.9","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,` +
	`"remote_num_tokens":600,"transfer_mode":"push"}`

// What prefill and decode carry so that they find each other, byte for byte: decode's leg has nothing of it before prefill has
// answered. A retry of decode is known to prefill's engine as the round that prefilled.
func TestVLLMHandOffs(t *testing.T) {
	const head = `{"model":"m","prompt":"hi","stream":`
	const xfer = `"transfer_id":"xfer-4611686018427387905"`
	for name, c := range map[string]struct {
		connector                Connector
		prefill, answers, decode string
		lease                    time.Duration
		id                       string
	}{
		"mooncake": {
			Mooncake{}, `{"do_remote_decode":true,"do_remote_prefill":false,` + xfer + `}`, `null`,
			`{"do_remote_decode":false,"do_remote_prefill":true,` + xfer + `,"remote_engine_id":"e_dp1","remote_bootstrap_addr":"http://10.0.0.1:8998"}`,
			480 * time.Second, "0123456789abcdef-2",
		},
		"push": {NIXLPush{}, string(prefillParams), pushed, pushed, 30 * time.Second, "0123456789abcdef-1"},
	} {
		r := carrying(mooncakePair(), scan(t, openai.Completions, `{"model":"m","prompt":"hi","stream":true,"max_tokens":9}`), nil)
		plan, err := c.connector.Plan(r)
		if err != nil || plan.Order != PrefillFirst {
			t.Fatalf("%s: %v %v", name, plan.Order, err)
		}
		if got, want := string(plan.Prefill.Body.AppendTo(nil)), head+`false,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":`+c.prefill+`}`; got != want {
			t.Errorf("%s, prefill:\n got %s\nwant %s", name, got, want)
		}
		if got, want := string(plan.Decode.Body.AppendTo(nil)), head+`true,"max_tokens":9}`; got != want {
			t.Errorf("%s, decode:\n got %s\nwant %s", name, got, want)
		}
		now := time.Unix(1000, 0)
		kv, whole, err := c.connector.OnPrefill(r, prefill.ReadAnswer([]byte(`{"choices":[],"kv_transfer_params":`+c.answers+`}`)), now)
		if err != nil || whole || kv.Validate() != nil || kv.Producer != r.P.ID || !kv.Expires.Equal(now.Add(c.lease)) {
			t.Fatalf("%s: %+v %v %v", name, kv, whole, err)
		}
		again := r
		again.P, again.ID = nil, "0123456789abcdef-2"
		retry, err := c.connector.Plan(again)
		if err != nil || retry.Prefill.Body != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.connector.Bind(&retry.Decode, kv)
		if got, want := string(retry.Decode.Body.AppendTo(nil)), head+`true,"max_tokens":9,"kv_transfer_params":`+c.decode+`}`; got != want || retry.Decode.RequestID != c.id {
			t.Errorf("%s, %s:\n got %s\nwant %s", name, retry.Decode.RequestID, got, want)
		}
		legs := c.connector.Abandon(r, kv)
		if name == "push" && len(legs) > 0 || name == "mooncake" && (len(legs) != 1 || legs[0].Purpose != fault.Release || legs[0].Worker != "d2" ||
			string(legs[0].Body.AppendTo(nil)) != `{"model":"tandem-release","prompt":"-","max_tokens":1,"kv_transfer_params":`+c.decode+`}`) {
			t.Errorf("%s: %+v", name, legs)
		}
	}
}

// An answer that hands over otherwise than the engines' connector does, or is none, reaches no decode engine.
func TestVLLMHandOffsThatAreNone(t *testing.T) {
	r := mooncakePair()
	for name, c := range map[string]struct {
		connector Connector
		answer    string
	}{
		"pull's answer to push": {NIXLPush{}, `{"kv_transfer_params":` + strings.Replace(pushed, `"push"`, `"pull"`, 1) + `}`},
		"push's answer to pull": {NIXL{}, `{"kv_transfer_params":` + pushed + `}`},
		"push without blocks":   {NIXLPush{}, `{"kv_transfer_params":` + strings.Replace(pushed, `[[1,2,3,4,5]]`, `[]`, 1) + `}`},
		"push without params":   {NIXLPush{}, `{"choices":[]}`},
		"mooncake's abort":      {Mooncake{}, `{"choices":[{"index":0,"text":"","finish_reason":"abort"}]}`},
		"mooncake's nothing":    {Mooncake{}, ``},
	} {
		if _, _, err := c.connector.OnPrefill(r, prefill.ReadAnswer([]byte(c.answer)), time.Now()); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	// Decode's engine reaches prefill's where the gateway does.
	local := strings.Replace(pushed, "10.0.0.9", "localhost", 1)
	kv, _, err := NIXLPush{}.OnPrefill(r, prefill.ReadAnswer([]byte(`{"kv_transfer_params":`+local+`}`)), time.Now())
	if err != nil || !strings.Contains(string(kv.Params), `"remote_host":"10.0.0.1"`) {
		t.Errorf("%s %v", kv.Params, err)
	}
	r.P.Address, r.P.Transfer = "http://10.0.0.5:8000", "localhost:9000"
	if kv, _, err := (Mooncake{}).OnPrefill(r, prefill.ReadAnswer([]byte(`{"choices":[]}`)), time.Now()); err != nil || !strings.Contains(string(kv.Params), `"http://10.0.0.5:9000"`) {
		t.Errorf("%s %v", kv.Params, err)
	}
}

// A pair of which one could not find the other is refused where it is chosen, with the reason.
func TestVLLMPairs(t *testing.T) {
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
			if connector == "vllm-nixl-push" && (c.why == "transfer" || c.why == "1 of its 2 ranks") {
				c.why = "" // prefill's answer says where it is
			}
			r := mooncakePair()
			r.P.Connector, r.D.Connector, r.P.BlockSize, r.D.BlockSize = connector, connector, 16, 16
			c.change(r.P, r.D)
			_, err := Between(r.P, r.D)
			if (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
				t.Errorf("%s, %s: %v", connector, name, err)
			}
		}
	}
	p, d := mooncakePair().P, mooncakePair().D
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
