package handoff

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/prefill"
)

// Nothing of a request is left in its memory.
func TestRequestsLeaveNothingBehind(t *testing.T) {
	f := &Flow{releaseKV: func(*StagedKV) {}}
	r := f.newRequest(&Call{ID: "mine", Request: &openai.Request{Model: "m"}})
	r.Attempts, r.cur, r.ids = 1, &r.first, []uint32{1}
	r.first.round.ID, r.first.call = "mine-1", decode.Call{Answer: []byte("mine")}
	r.Retain()
	r.Release()
	assert.Equal(t, "m", r.Call.Request.Model, "another holds it")
	r.Release()
	assert.True(t, r.Call.Request == nil && r.ID == "" && r.cur == nil && r.ids == nil && r.first.round.ID == "" && r.first.call.Answer == nil,
		"%+v", r.Record)
}

// carrying releases a round by a call that carries the client's body.
type carrying struct{ connector.Connector }

func (carrying) Release(r connector.Round, _ prefill.KV) []http1.Leg {
	return []http1.Leg{{Body: http1.Body{r.Request.Raw}}}
}

// late is a Transport that sends its call's body once it may.
type late struct {
	now  chan struct{}
	sent string
}

func (l *late) Call(_ context.Context, leg http1.Leg) (http1.Stream, error) {
	<-l.now
	l.sent = string(leg.Body.AppendTo(nil))
	return answer(http.StatusOK, "{}"), nil
}

// A clean-up call that leaves after its request has ended carries its own tenant's prompt, and no other's.
func TestCleanUpHoldsTheClientsBody(t *testing.T) {
	const mine = "a tenant's prompt"
	calls := &late{now: make(chan struct{})}
	clean := newCleanup(Rooms{Transport: calls}, unobserved{})
	body := http1.Take(1 << 10)
	body.B = append(body.B, mine...)
	clean.release(carrying{}, connector.Round{Body: body, Request: &openai.Request{Raw: body.B}}, prefill.KV{})
	body.Release() // the edge's
	for range 64 {
		other := http1.Take(1 << 10)
		other.B = append(other.B, "another's prompt"...)
	}
	close(calls.now)
	require.NoError(t, clean.wait(t.Context()))
	assert.Equal(t, mine, calls.sent)
}
