package handoff

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/placement"
)

// failing answers a prompt "bad", and every prompt on the broken worker, as vLLM 0.32 does a grammar that does not compile: it starts,
// and gets to _raise_if_error of entrypoints/generate/base/serving.py.
type failing struct{ broken string }

func (n failing) Call(_ context.Context, leg http1.Leg) (http1.Stream, error) {
	body := string(leg.Body.AppendTo(nil))
	switch {
	case leg.Worker == n.broken, strings.Contains(body, `"bad"`):
		const named = `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`
		if strings.Contains(body, `"stream":true`) {
			return answered{strings.NewReader("data: " + named + "\n\ndata: [DONE]\n\n"), 200, "text/event-stream"}, nil
		}
		return answer(500, named), nil
	case pools.Role(leg.Purpose) == pools.Prefill:
		return holding{}.Call(context.Background(), leg)
	}
	return answer(200, `{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`), nil
}

// TestOneRequestOpensNoCircuit: an error that every worker reports of a request counts for none; one that another worker does not report
// counts, on either leg.
func TestOneRequestOpensNoCircuit(t *testing.T) {
	apart := map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode}
	together := map[string]pools.Role{"b1": pools.Both, "b2": pools.Both, "b3": pools.Both}
	for _, c := range []struct {
		workers        map[string]pools.Role
		prompt, broken string
	}{
		{together, "bad", ""}, {together, `bad","stream":true,"user":"`, ""}, {together, "good", "b1"}, {together, "good", ""},
		{apart, "bad", ""}, {apart, "good", "p1"}, {apart, "good", "d1"},
	} {
		h := build(t, c.workers, failing{c.broken}, nil)
		for range 20 {
			call := Call{ID: "x", Request: scanned(t, openai.Completions, `{"model":"m","prompt":"`+c.prompt+`"}`), Arrival: time.Now()}
			err := h.Serve(t.Context(), &call, &written{})
			require.Equal(t, strings.HasPrefix(c.prompt, "bad"), err != nil, "%s, broken %q: %v", c.prompt, c.broken, err)
		}
		open := ""
		for _, is := range h.breakers.States() {
			if is.State != fault.Closed {
				open += is.Worker
			}
		}
		assert.Equal(t, c.broken, open, "%s: whose circuits are open", c.prompt)
	}
}

// TestAProducerIsRetried: decode cannot find the engine whose KV it is to pull: a Mooncake prefill that has started again draws another
// engine id (MooncakeConnector in vLLM 0.32). The worker is asked at once, and the next round leaves it out.
func TestAProducerIsRetried(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill, "d1": pools.Decode})
	var looked []string
	h.rooms.Look = func(worker string) { looked = append(looked, worker) }
	p1, _ := h.rooms.Roster.Lookup("p1")
	d1, _ := h.rooms.Roster.Lookup("d1")
	for class, want := range map[fault.Class][]string{fault.EngineError: {"p1"}, fault.Stalled: nil, fault.Overloaded: nil} {
		looked = nil
		r := h.ask()
		r.KV = &StagedKV{producer: p1.Worker}
		h.suspect(r, d1.Worker, &fault.Error{Leg: pools.Decode, Worker: "d1", Class: class})
		assert.Equal(t, want, looked, class)
		assert.Equal(t, want != nil, slices.Contains(r.tried, "p1"), class)
	}
}

// panicking ends prefill's leg well, and panics in decode's.
type panicking struct{ holding }

func (p panicking) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	if pools.Role(leg.Purpose) == pools.Decode {
		panic("on purpose")
	}
	return p.holding.Call(ctx, leg)
}

// TestPanicsLeaveNoTransfer: transfers that never ended would age, and shut their pair for ever.
func TestPanicsLeaveNoTransfer(t *testing.T) {
	h := build(t, oneOfEach, panicking{}, nil)
	h.links.core = placement.NewLinks(func(*pools.Worker, int) (time.Duration, bool) { return time.Millisecond, true })
	for range 5 {
		call := Call{ID: "x", Request: scanned(t, openai.Completions, `{"model":"m","prompt":"a","stream":true}`), Arrival: time.Now()}
		assert.Panics(t, func() { _ = h.Serve(t.Context(), &call, &written{}) })
	}
	assert.False(t, h.links.Shut("m", 4000, time.Now().Add(time.Hour)))
}
