package service

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/kv/overlap"
)

var remotePrompt = []uint64{1, 2, 3}

// A lookup returns the report, and nothing of the prompt but its hashes leaves.
func TestLookup(t *testing.T) {
	f := newFake(t)
	c, _ := running(t, ClientConfig{URLs: []string{f.URL}}, "a", "b")
	ranks(t, c, 2)
	report, out := c.Lookup(t.Context(), "m", 16, remotePrompt)
	if out != Answered || report.Layout.Len() != 2 || report.Tiers[1].Device != 1 || report.Layout.Rank(1).Worker != "b" {
		t.Errorf("%s: %+v", out, report)
	}
	f.set(func() {
		assert.True(t, bytes.Equal(f.prompted, appendHashes(nil, remotePrompt)), "it was asked with %x", f.prompted)
	})
	again, _ := c.Lookup(t.Context(), "m", 16, remotePrompt)
	assert.Same(t, report.Layout, again.Layout, "one list has two layouts: each answer would be placed again")
	f.set(func() { f.queries = 0 })
	if report, out := c.Lookup(t.Context(), "other", 16, remotePrompt); out != UnknownModel || report != nil || f.asked() != 0 {
		t.Errorf("of a model that is not listed: %s after %d calls", out, f.asked())
	}
}

// Whatever an index does, a look-up ends within its time, with a word for it and
// no report, and is made once.
func TestLookupOfABadIndex(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) }
	}
	contains := func(kind string, body []byte) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(body)
		}
	}
	about := func(rest ...byte) []byte { // the right list, of the one rank of a
		return append(AppendAnswer(nil, Sum(overlap.NewLayout([]overlap.Rank{{Worker: "a"}})), nil), rest...)
	}
	for _, tt := range []struct {
		name   string
		answer func(w http.ResponseWriter, r *http.Request)
		want   Outcome
		blamed bool
	}{
		{"slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Timeout, true},
		{"slow behind its head", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", AnswerType)
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, Timeout, true},
		{"hangs up", func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) }, Unreachable, true},
		{"401", status(401), Unauthorized, true},
		{"404", status(404), UnknownModel, false},
		{"409", status(409), Refused, false},
		{"500", status(500), Garbled, true},
		{"503", status(503), NotReady, true},
		{"redirected", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, Refused, false},
		{"JSON", contains("application/json", []byte(`{"workers":[]}`)), Garbled, true},
		{"short", contains(AnswerType, []byte{1, 2}), Garbled, true},
		{"another list", contains(AnswerType, AppendAnswer(nil, 0, nil)), Unplaced, false},
		{"no ranks", contains(AnswerType, about()), Garbled, true},
		{"half a rank", contains(AnswerType, about(2, 0, 0)), Garbled, true},
		{"more than its ranks", contains(AnswerType, about(2, 0, 0, 0, 7)), Garbled, true},
		{"a number without an end", contains(AnswerType, about(bytes.Repeat([]byte{0xff}, 12)...)), Garbled, true},
		{"huge", contains(AnswerType, make([]byte, maxAnswerBytes+1)), Garbled, true},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", AnswerType)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
					return
				}
			}
		}, Garbled, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			limit := 10 * time.Second
			if tt.want == Timeout {
				limit = 20 * time.Millisecond
			}
			c, _ := running(t, ClientConfig{URLs: []string{f.URL}, Timeout: limit,
				Breaker: fault.BreakerConfig{Consecutive: 1, OpenFor: time.Hour}}, "a")
			ranks(t, c, 1)
			f.set(func() { f.answer = tt.answer })
			report, out := c.Lookup(t.Context(), "m", 16, remotePrompt)
			assert.True(t, report == nil && out == tt.want, "%s, %+v; want %s", out, report, tt.want)
			assert.Equal(t, 1, f.asked(), "it was asked N times")
			if open := c.States()[0].Circuit == fault.Open; open != tt.blamed {
				t.Errorf("the circuit is %s", c.States()[0].Circuit)
			}
		})
	}
}

// The second index is asked while the first one's circuit is open, and the first
// again once it is well.
func TestSiblingsAreTriedInOrder(t *testing.T) {
	f, g := newFake(t), newFake(t)
	c, _ := running(t, ClientConfig{URLs: []string{f.URL, g.URL}, Breaker: fault.BreakerConfig{OpenFor: 10 * time.Millisecond}}, "a")
	eventually(t, "both list it", func() bool { s := c.States(); return s[0].Ranks == 1 && s[1].Ranks == 1 })
	f.set(func() { f.answer = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) } })
	for range 3 {
		if _, out := c.Lookup(t.Context(), "m", 16, remotePrompt); out != Unreachable {
			t.Fatalf("before the circuit opens: %s", out)
		}
	}
	eventually(t, "the second answers", func() bool {
		_, out := c.Lookup(t.Context(), "m", 16, remotePrompt)
		return out == Answered
	})
	assert.NotZero(t, g.asked(), "the second was not asked")
	f.set(func() { f.answer, f.queries = nil, 0 })
	eventually(t, "the first is asked again", func() bool {
		c.Lookup(t.Context(), "m", 16, remotePrompt)
		return f.asked() > 2
	})
	f.Close()
	g.Close()
	eventually(t, "no index is asked", func() bool {
		_, out := c.Lookup(t.Context(), "m", 16, remotePrompt)
		return out == CircuitOpen
	})
}

// A look-up ends with its client, and does not blame the index for it; one more
// than there may be is not made.
func TestLookupIsBoundedAndCancelled(t *testing.T) {
	f := newFake(t)
	c, _ := running(t, ClientConfig{URLs: []string{f.URL}, InFlight: 4, Breaker: fault.BreakerConfig{Consecutive: 1}}, "a")
	ranks(t, c, 1)
	arrived := make(chan struct{}, 8)
	f.set(func() {
		f.answer = func(_ http.ResponseWriter, r *http.Request) { arrived <- struct{}{}; <-r.Context().Done() }
	})
	ctx, leave := context.WithCancel(t.Context())
	var group sync.WaitGroup
	outs := make([]Outcome, 4)
	for i := range outs {
		group.Go(func() { _, outs[i] = c.Lookup(ctx, "m", 16, remotePrompt) })
	}
	for range outs {
		<-arrived
	}
	if _, out := c.Lookup(t.Context(), "m", 16, remotePrompt); out != Saturated {
		t.Errorf("one too many: %s", out)
	}
	leave()
	group.Wait()
	if slices.ContainsFunc(outs, func(o Outcome) bool { return o != Cancelled }) || c.States()[0].Circuit != fault.Closed {
		t.Errorf("left: %v, circuit %s", outs, c.States()[0].Circuit)
	}
	f.set(func() { f.answer = nil })
	if _, out := c.Lookup(t.Context(), "m", 16, remotePrompt); out != Answered {
		t.Errorf("afterwards: %s", out)
	}
}
