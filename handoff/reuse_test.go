package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// The memory of a request goes to the next one only where nothing else can refer to it, and nothing of the request is left in it. So
// does its body's.
func TestOnlyTheServedAreReused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *request)
		reused bool
	}{
		"served at once":               {func(*request) {}, true},
		"failed":                       {func(r *request) { r.served = false }, false},
		"served at the second attempt": {func(r *request) { r.Attempts = 2 }, false},
		"KV was given up before": {func(r *request) {
			r.stage(&StagedKV{})
			r.dropAll() // the lease on it was over while it waited for decode, which is no attempt
		}, false},
	} {
		f := &Flow{abandon: func(*StagedKV) {}}
		f.requests.New = func() any { return f.blank() }
		r := f.newRequest(&Call{ID: "mine", Request: &openai.Request{Model: "m"}})
		r.served, r.Attempts, r.now, r.ids = true, 1, &r.first, []uint32{1}
		r.first.round.ID, r.first.call = "mine-1", decode.Call{Answer: []byte("mine")}
		c.change(r)
		assert.Equal(t, c.reused, f.reuse(r), "%s: alone", name)
		assert.NotNil(t, r.calls.first, "%s: its callbacks are gone", name)
		blank := r.Call.Request == nil && r.ID == "" && r.now == nil && r.ids == nil && r.first.round.ID == "" && r.first.call.Answer == nil
		assert.Equal(t, c.reused, blank, "%s: %+v", name, r.Record)
	}
}

// The memory of legs' bodies is given back once both have left, and no sooner.
func TestBodiesAreGivenBackOnceTheyHaveLeft(t *testing.T) {
	short := http1.Body{[]byte(`{"prompt":"mine"}`)}
	for name, c := range map[string]struct {
		twin  *sibling
		body  http1.Body
		given bool
	}{
		"both have left":                     {nil, short, true},
		"prefill runs at the same time":      {new(sibling), short, false},
		"decode may answer before it is all": {nil, http1.Body{make([]byte, http1.LeavesWhole+1)}, false},
	} {
		memory := new(connector.Memory)
		m := &roundMemory{bodies: memory, sibling: c.twin}
		m.round.Memory, m.plan.Decode.Body = memory, c.body
		m.sent()
		assert.Equal(t, c.given, m.bodies == nil && m.round.Memory == nil && m.plan.Decode.Body == nil, "%s: given back", name)
		m.sent() // an answer has one first token, and a round may have two answers
	}
}
