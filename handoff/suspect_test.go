package handoff

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// failing answers a prompt "bad", and every prompt on the broken worker, as vLLM 0.32 does a grammar that does not compile: it starts,
// and gets to _raise_if_error of entrypoints/generate/base/serving.py.
type failing struct{ broken string }

type internalError struct{ answered }

func (internalError) Status() int { return 500 }

type streamed struct{ answered }

func (streamed) ContentType() string { return "text/event-stream" }

func (n failing) Call(_ context.Context, leg upstream.Leg) (upstream.Stream, error) {
	switch {
	case leg.Worker == n.broken, strings.Contains(string(leg.Body.AppendTo(nil)), `"bad"`):
		const said = `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`
		if strings.Contains(string(leg.Body.AppendTo(nil)), `"stream":true`) {
			return streamed{answered{strings.NewReader("data: " + said + "\n\ndata: [DONE]\n\n")}}, nil
		}
		return internalError{answered{strings.NewReader(said)}}, nil
	case pools.Role(leg.Purpose) == pools.Prefill:
		return holding{}.Call(context.Background(), leg)
	}
	return answered{strings.NewReader(`{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)}, nil
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
		h := newHouse(t, true, c.workers)
		net := failing{c.broken}
		h.rooms.Prefill, h.rooms.Decode = prefill.New(prefill.Config{}, h.rooms.Roster, net), decode.New(decode.Config{}, h.rooms.Roster, net)
		h.rooms.Languages, h.rooms.Transport = languages(t, nil), net
		for range 20 {
			call := Call{ID: "x", Request: scanned(t, openai.Completions, `{"model":"m","prompt":"`+c.prompt+`"}`), Arrival: time.Now()}
			if err := h.Serve(t.Context(), &call, &written{}); (err != nil) != strings.HasPrefix(c.prompt, "bad") {
				t.Fatalf("%s, broken %q: %v", c.prompt, c.broken, err)
			}
		}
		open := map[string]bool{}
		for _, is := range h.breakers.States() {
			if is.State != fault.Closed {
				open[is.Worker] = true
			}
		}
		want := map[string]bool{c.broken: true}
		if delete(want, ""); !maps.Equal(open, want) {
			t.Errorf("%s, broken %q: circuits of %v are open", c.prompt, c.broken, open)
		}
	}
}

// TestAProducerIsAskedAgain: decode cannot find the engine whose KV it is to pull: a Mooncake prefill that has started again draws another
// engine id (MooncakeConnector in vLLM 0.32). The worker is asked at once, and the next round leaves it out.
func TestAProducerIsAskedAgain(t *testing.T) {
	h := newHouse(t, true, map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill, "d1": pools.Decode})
	var looked []string
	h.rooms.Look = func(worker string) { looked = append(looked, worker) }
	member := func(id string) *pools.Worker {
		m, _ := h.rooms.Roster.Lookup(id)
		return m.Worker
	}
	for class, want := range map[fault.Class][]string{fault.EngineError: {"p1"}, fault.Stalled: nil, fault.Overloaded: nil} {
		looked = nil
		r := h.ask()
		r.KV = &StagedKV{producer: member("p1")}
		h.suspect(r, member("d1"), &fault.Error{Leg: pools.Decode, Worker: "d1", Class: class})
		if !slices.Equal(looked, want) || slices.Contains(r.tried, "p1") != (want != nil) {
			t.Errorf("%v: asked %v, left out %v", class, looked, r.tried)
		}
	}
}
