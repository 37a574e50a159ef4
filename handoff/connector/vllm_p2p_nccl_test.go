package connector

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Both legs have the id by which prefill pushes and decode finds, and no other field says it. A loopback address is the
// worker's own view of itself.
func TestP2PNCCLPlan(t *testing.T) {
	r := roundOf("vllm-p2p-nccl", scan(t, openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":9,"max_completion_tokens":8}`), nil)
	r.D.Transfer = "127.0.0.1:14579"
	plan, err := P2PNCCL{}.Plan(r)
	if err != nil || plan.Order != PrefillFirst || !plan.Pushed || plan.Prefill.Stream || !plan.Decode.Stream {
		t.Fatalf("%+v, %v", plan, err)
	}
	const want = "___prefill_addr_10.0.0.1:5600___decode_addr_10.0.0.2:14579_"
	id := plan.Decode.RequestID
	if digits, ok := strings.CutPrefix(id, want); !ok || len(digits) != 32 || plan.Prefill.RequestID != id {
		t.Errorf("ids %q and %q, want %q and 32 digits", plan.Prefill.RequestID, id, want)
	}
	if got, want := string(plan.Prefill.Body.AppendTo(nil)), `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false,"max_tokens":1,"max_completion_tokens":1,"ignore_eos":true}`; got != want {
		t.Errorf("prefill:\n got %s\nwant %s", got, want)
	}
	if got := string(plan.Decode.Body.AppendTo(nil)); got != string(r.Request.Raw) {
		t.Errorf("decode: %s", got)
	}
	r.TransferID++
	if again, err := (P2PNCCL{}).Plan(r); err != nil || again.Decode.RequestID == id {
		t.Errorf("another round has the id %q, %v", again.Decode.RequestID, err)
	}
	r.P.Transfer = "[fd00::1]:5600"
	if six, err := (P2PNCCL{}).Plan(r); err != nil || !strings.HasPrefix(six.Decode.RequestID, "___prefill_addr_[fd00::1]:5600___") {
		t.Errorf("IPv6: %q, %v", six.Decode.RequestID, err)
	}
	r.P = nil
	if _, err := (P2PNCCL{}).Plan(r); err == nil {
		t.Error("decode gets a request alone")
	}
}

// KV in decode's buffer goes with a request of its id at that worker: any other would wait for ever.
func TestP2PNCCLAbandon(t *testing.T) {
	r := roundOf("vllm-p2p-nccl", scan(t, openai.Completions, `{"model":"m","prompt":"hi","stream":true,"max_tokens":9}`), nil)
	c, now := P2PNCCL{}, time.Now()
	kv, whole, err := c.OnPrefill(r, prefill.ReadAnswer([]byte(`{"choices":[{"finish_reason":"length"}]}`)), now)
	if err != nil || whole || kv.Producer != "d2" || !kv.Bindable(now) {
		t.Fatalf("%+v %v %v", kv, whole, err)
	}
	plan, _ := c.Plan(r)
	legs := c.Abandon(r, kv)
	if len(legs) != 1 || legs[0].Purpose != fault.Release || legs[0].Worker != "d2" || legs[0].Path != plan.Decode.Path || legs[0].RequestID != plan.Decode.RequestID || legs[0].Stream {
		t.Fatalf("%+v", legs)
	}
	if got, want := string(legs[0].Body.AppendTo(nil)), `{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"ignore_eos":true}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	for name, other := range map[string]pools.Worker{"another worker": {ID: "d3", Incarnation: "i"}, "another life": {ID: "d2", Incarnation: "j"}} {
		o := r
		o.D = &other
		if legs := c.Abandon(o, kv); len(legs) != 0 {
			t.Errorf("%s: %+v", name, legs)
		}
	}
	if kv, _, err := c.OnPrefill(r, prefill.Answer{}, now); err == nil || len(c.Abandon(r, kv)) != 0 || len(c.Abandon(r, prefill.KV{})) != 0 {
		t.Errorf("KV that may not be there is asked for: %+v, %v", kv, err)
	}
}

// What the protocol cannot do is refused before a request is sent, and decode serves in pairs only.
func TestP2PNCCLPairs(t *testing.T) {
	for want, change := range map[string]func(p, d *pools.Worker){
		"":                   func(_, _ *pools.Worker) {},
		"p1 has no transfer": func(p, _ *pools.Worker) { p.Transfer = "" },
		"d2 has no transfer": func(_, d *pools.Worker) { d.Transfer = "" },
		"2 data-parallel":    func(_, d *pools.Worker) { d.DataParallelRanks = 2 },
		"blocks of 16":       func(_, d *pools.Worker) { d.BlockSize = 32 },
		"parallelism":        func(p, _ *pools.Worker) { p.TensorParallel = 4 },
		"the same release":   func(p, _ *pools.Worker) { p.EngineVersion = "0.32.0" },
	} {
		r := roundOf("vllm-p2p-nccl", nil, nil)
		change(r.P, r.D)
		_, err := Between(r.P, r.D)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if r.D.ServesAlone() {
			t.Error("decode serves alone")
		}
	}
}
