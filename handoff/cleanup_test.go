package handoff

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// releasers answer calls by a status for each worker, 0 for a broken connection.
type releasers struct {
	status map[string]int
	mu     sync.Mutex
	called []string
}

func (r *releasers) Call(_ context.Context, leg upstream.Leg) (upstream.Stream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.called = append(r.called, leg.Worker)
	if r.status[leg.Worker] == 0 {
		return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: io.EOF}
	}
	return &released{strings.NewReader("{}"), r.status[leg.Worker]}, nil
}

// releases observes how releases ended.
type releases struct {
	unobserved
	ended []error
}

func (r *releases) Released(_ prefill.KV, _ string, err error) { r.ended = append(r.ended, err) }

type released struct {
	io.Reader
	status int
}

func (r *released) Status() int         { return r.status }
func (r *released) ContentType() string { return "application/json" }
func (r *released) Close() error        { return nil }

// A release is done when the engine has refused the request that carries it, or
// taken it. Where the engine failed, or did not look at the request, the stand-in is
// asked, and where that fails too the release has failed.
func TestReleaseIsDoneWhereTheEngineReadIt(t *testing.T) {
	roster := pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler))
	for _, w := range []pools.Worker{{ID: "d0", Engine: "sglang"}, {ID: "d2", Engine: "vllm"}} { // only one of them speaks the protocol
		w.Incarnation, w.Model, w.Role, w.Address, w.BlockSize = "i", "m", pools.Decode, "http://h:1", 16
		if err := roster.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		status, standIn int
		called          []string
		result          string
	}{
		{http.StatusNotFound, 0, []string{"d1"}, "released"}, // vLLM: there is no such model
		{http.StatusBadRequest, 0, []string{"d1"}, "released"},
		{http.StatusUnprocessableEntity, 0, []string{"d1"}, "released"},
		{http.StatusOK, 0, []string{"d1"}, "released"},
		{0, http.StatusNotFound, []string{"d1", "d2"}, "released"},
		{http.StatusInternalServerError, http.StatusNotFound, []string{"d1", "d2"}, "released"},
		{http.StatusServiceUnavailable, http.StatusNotFound, []string{"d1", "d2"}, "released"},
		{http.StatusUnauthorized, http.StatusNotFound, []string{"d1", "d2"}, "released"},
		{http.StatusForbidden, http.StatusNotFound, []string{"d1", "d2"}, "released"},
		{http.StatusRequestTimeout, http.StatusNotFound, []string{"d1", "d2"}, "released"},
		{http.StatusTooManyRequests, http.StatusNotFound, []string{"d1", "d2"}, "released"},
		{http.StatusInternalServerError, http.StatusBadGateway, []string{"d1", "d2"}, "failed"},
	} {
		calls := &releasers{status: map[string]int{"d1": c.status, "d2": c.standIn}}
		seen := &releases{}
		clean := newCleanup(Rooms{Transport: calls, Roster: roster, Between: connector.Between}, seen)
		a := connector.Round{ID: "x-1", Request: &openai.Request{Model: "m"}, P: &pools.Worker{ID: "p1"}, D: &pools.Worker{ID: "d1", Model: "m"}}
		clean.abandon(connector.NIXL{}, a, prefill.KV{Params: []byte("{}")})
		if err := clean.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(seen.ended) != 1 || (seen.ended[0] == nil) != (c.result == "released") || !slices.Equal(calls.called, c.called) {
			t.Errorf("%d, then %d: asked %q, ended %v, want %s", c.status, c.standIn, calls.called, seen.ended, c.result)
		}
	}
}

// Where every decode worker is gone, another prefill worker makes the release, and the one that holds the KV does not.
func TestReleaseByAPrefillWorker(t *testing.T) {
	roster := pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler))
	for _, id := range []string{"p1", "p2"} {
		if err := roster.Put(pools.Worker{ID: id, Engine: "vllm", Incarnation: "i", Model: "m", Role: pools.Prefill, Address: "http://h:1", BlockSize: 16}); err != nil {
			t.Fatal(err)
		}
	}
	for _, called := range [][]string{{"d1", "p2"}, {"d1"}} {
		calls := &releasers{status: map[string]int{"p1": http.StatusNotFound, "p2": http.StatusNotFound}}
		clean := newCleanup(Rooms{Transport: calls, Roster: roster, Between: connector.Between}, &releases{})
		a := connector.Round{ID: "x-1", Request: &openai.Request{Model: "m"}, P: &pools.Worker{ID: "p1"}, D: &pools.Worker{ID: "d1", Model: "m"}}
		clean.abandon(connector.NIXL{}, a, prefill.KV{Params: []byte("{}")})
		if err := clean.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(calls.called, called) {
			t.Errorf("asked %q, want %q", calls.called, called)
		}
		roster.Remove("p2")
	}
}

// Waiting for what is in flight ends with its context.
func TestWaitForReleasesEnds(t *testing.T) {
	clean := newCleanup(Rooms{Transport: nowhere{}}, unobserved{})
	hold := make(chan struct{})
	clean.calls.Go(func() { <-hold })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := clean.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(hold)
	if err := clean.wait(t.Context()); err != nil {
		t.Error(err)
	}
}
