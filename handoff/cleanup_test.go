package handoff

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// releasers answer calls by a status for each worker, 0 for a broken connection.
type releasers struct {
	status map[string]int
	mu     sync.Mutex
	called []string
}

func (r *releasers) Call(_ context.Context, leg http1.Leg) (http1.Stream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called = append(r.called, leg.Worker)
	if r.status[leg.Worker] == 0 {
		return nil, broken(leg, io.EOF)
	}
	return answer(r.status[leg.Worker], "{}"), nil
}

// releases observes how releases ended.
type releases struct {
	unobserved
	ended []error
}

func (r *releases) Released(_ prefill.KV, _ string, err error) { r.ended = append(r.ended, err) }

// A release is done when the engine has refused the request that carries it, or
// taken it. Where the engine failed, or did not look at the request, the stand-in is
// asked: another decode worker that speaks the protocol, or where there is none a prefill
// worker other than the one that holds the KV. Where that fails too the release has failed.
func TestReleaseIsDoneWhereTheEngineReadIt(t *testing.T) {
	workers := func(roles map[string]pools.Role) *pools.Roster {
		h := newHouse(t, true, roles)
		if _, ok := roles["d0"]; ok {
			h.change(t, "d0", func(w *pools.Worker) { w.Engine = "sglang" })
		}
		return h.rooms.Roster
	}
	decodes := workers(map[string]pools.Role{"d0": pools.Decode, "d2": pools.Decode})
	prefills, producer := workers(map[string]pools.Role{"p1": pools.Prefill, "p2": pools.Prefill}),
		workers(map[string]pools.Role{"p1": pools.Prefill})
	for _, c := range []struct {
		roster   *pools.Roster
		statuses []int
		standIn  int
		called   []string
		released bool
	}{
		// The first is vLLM's, which has no such model.
		{decodes, []int{http.StatusNotFound, http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusOK}, 0, []string{"d1"}, true},
		{decodes, []int{0, 500, 401, 403, http.StatusRequestTimeout, http.StatusTooManyRequests}, http.StatusNotFound,
			[]string{"d1", "d2"}, true},
		{decodes, []int{500}, http.StatusBadGateway, []string{"d1", "d2"}, false},
		{prefills, []int{0}, http.StatusNotFound, []string{"d1", "p2"}, true},
		{producer, []int{0}, http.StatusNotFound, []string{"d1"}, false},
	} {
		for _, status := range c.statuses {
			calls := &releasers{status: map[string]int{"d1": status, "d2": c.standIn, "p1": c.standIn, "p2": c.standIn}}
			seen := &releases{}
			clean := newCleanup(Rooms{Transport: calls, Roster: c.roster, Between: connector.Between}, seen)
			a := connector.Round{ID: "x-1", Request: &openai.Request{Model: "m"}, P: &pools.Worker{ID: "p1"}, D: &pools.Worker{ID: "d1", Model: "m"}}
			clean.release(connector.NIXL{}, a, prefill.KV{Params: []byte("{}")})
			require.NoError(t, clean.wait(t.Context()))
			require.Len(t, seen.ended, 1)
			assert.Equal(t, c.released, seen.ended[0] == nil, "%d, then %d: %v", status, c.standIn, seen.ended[0])
			assert.Equal(t, c.called, calls.called, "%d, then %d", status, c.standIn)
		}
	}
}

// Waiting for what is in flight ends with its context.
func TestWaitForReleasesEnds(t *testing.T) {
	clean := newCleanup(Rooms{Transport: nowhere{}}, unobserved{})
	hold := make(chan struct{})
	clean.calls.Go(func() { <-hold })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.ErrorIs(t, clean.wait(ctx), context.Canceled)
	close(hold)
	assert.NoError(t, clean.wait(t.Context()))
}

func TestCleanupStackFreesOnceLastFirst(t *testing.T) {
	var got []string
	s := cleanupStack{releaseKV: func(kv *StagedKV) { got = append(got, kv.Producer) }}
	note := func(what string) held {
		if what == "kv" {
			return held{kv: &StagedKV{KV: prefill.KV{Producer: what}}}
		}
		return held{booking: placement.Booking{Lease: new(router.Lease), Done: func(error) { got = append(got, what) }}}
	}
	s.push(note("first"))
	d := s.push(note("decode"))
	s.push(held{kv: &StagedKV{taken: true}}) // decode has it: nothing is owed
	p := s.push(note("prefill"))
	s.releaseAt(p) // a failed prefill keeps decode's room
	s.releaseAt(p)
	require.Equal(t, []string{"prefill"}, got)
	s.push(note("kv"))
	s.releaseAt(d) // another decode worker: the KV stays
	s.push(note("decode 2"))
	s.release()
	s.release()
	assert.Equal(t, []string{"prefill", "decode", "decode 2", "kv", "first"}, got)
}
