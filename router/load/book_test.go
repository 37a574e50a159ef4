package load

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// TestLife walks bookings through their life and checks the account after each
// step.
func TestLife(t *testing.T) {
	add := func(request string, attempt, tokens, blocks int) Event {
		return Event{Request: request, Attempt: attempt, Kind: Add, Worker: "w", PrefillTokens: tokens, Blocks: blocks}
	}
	on := func(request string, attempt int, k Kind, blocks int) Event {
		return Event{Request: request, Attempt: attempt, Kind: k, Blocks: blocks}
	}
	b := NewBook()
	for i, step := range []struct {
		event   Event
		changes bool
		want    Account
	}{
		{on("a", 0, Free, 0), false, Account{}},
		{add("a", 0, 100, 7), true, Account{ActiveBlocks: 7, PrefillTokens: 100, Requests: 1}},
		{add("a", 0, 100, 7), false, Account{ActiveBlocks: 7, PrefillTokens: 100, Requests: 1}},
		{add("a", 1, 10, 1), true, Account{ActiveBlocks: 8, PrefillTokens: 110, Requests: 2}},
		{on("a", 0, PrefillDone, 0), true, Account{ActiveBlocks: 8, PrefillTokens: 10, Requests: 2}},
		{on("a", 0, PrefillDone, 0), false, Account{ActiveBlocks: 8, PrefillTokens: 10, Requests: 2}},
		{on("a", 0, Grow, 2), true, Account{ActiveBlocks: 10, PrefillTokens: 10, Requests: 2}},
		{on("a", 0, Grow, -2), false, Account{ActiveBlocks: 10, PrefillTokens: 10, Requests: 2}},
		{on("b", 0, Grow, 2), false, Account{ActiveBlocks: 10, PrefillTokens: 10, Requests: 2}},
		{on("a", 0, Free, 0), true, Account{ActiveBlocks: 1, PrefillTokens: 10, Requests: 1}},
		{on("a", 0, Free, 0), false, Account{ActiveBlocks: 1, PrefillTokens: 10, Requests: 1}},
		{on("a", 0, Grow, 2), false, Account{ActiveBlocks: 1, PrefillTokens: 10, Requests: 1}},
		{on("a", 0, PrefillDone, 0), false, Account{ActiveBlocks: 1, PrefillTokens: 10, Requests: 1}},
		{on("a", 1, Free, 0), true, Account{}},
		{add("c", 0, -5, -5), true, Account{ActiveBlocks: 0, PrefillTokens: 0, Requests: 1}},
		{on("c", 0, Kind(9), 1), false, Account{ActiveBlocks: 0, PrefillTokens: 0, Requests: 1}},
		{on("c", 0, Free, 0), true, Account{}},
	} {
		if got := b.Apply(step.event, noon); got != step.changes {
			t.Errorf("step %d, %d of %s: changed %v, want %v", i, step.event.Kind, step.event.Request, got, step.changes)
		}
		if got := b.Page("w", 0).Account; got != step.want {
			t.Errorf("step %d, %d of %s: %+v, want %+v", i, step.event.Kind, step.event.Request, got, step.want)
		}
	}
	if b.Open() != 0 {
		t.Errorf("%d bookings are left open", b.Open())
	}
}

func TestPrune(t *testing.T) {
	b := NewBook()
	idle, kept, busy := b.Page("idle", 0), b.Page("kept", 0), b.Page("busy", 0)
	b.Apply(Event{Request: "a", Kind: Add, Worker: "busy", Blocks: 3}, noon)
	b.Prune(func(worker string) bool { return worker == "kept" })
	if b.Page("kept", 0) != kept || b.Page("busy", 0) != busy {
		t.Error("pruning closed an account that is kept, or has a booking")
	}
	if b.Page("idle", 0) == idle {
		t.Error("pruning left an idle account open")
	}
}

// TestTwin enters random events and compares every account with what the list
// of events says, computed from the start each time.
func TestTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBook()
		var history []Event
		for range rapid.IntRange(0, 120).Draw(t, "events") {
			e := Event{
				Request:       rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "request"),
				Attempt:       rapid.IntRange(0, 1).Draw(t, "attempt"),
				Kind:          Kind(rapid.IntRange(0, 3).Draw(t, "kind")),
				Worker:        rapid.SampledFrom([]string{"w", "v"}).Draw(t, "worker"),
				Rank:          rapid.IntRange(0, 1).Draw(t, "rank"),
				PrefillTokens: rapid.IntRange(0, 9).Draw(t, "tokens"),
				Blocks:        rapid.IntRange(0, 9).Draw(t, "blocks"),
			}
			b.Apply(e, noon)
			history = append(history, e)

			want := map[string]Account{}
			for _, begin := range lives(history) {
				slot := fmt.Sprint(begin[0].Worker, begin[0].Rank)
				a := want[slot]
				a.Requests++
				a.ActiveBlocks += begin[0].Blocks
				tokens := begin[0].PrefillTokens
				for _, e := range begin[1:] {
					if e.Kind == Grow {
						a.ActiveBlocks += e.Blocks
					}
					if e.Kind == PrefillDone {
						tokens = 0
					}
				}
				a.PrefillTokens += tokens
				want[slot] = a
			}
			for _, worker := range []string{"w", "v"} {
				for rank := range 2 {
					slot := fmt.Sprint(worker, rank)
					if got := b.Page(worker, rank).Account; got != want[slot] {
						t.Fatalf("%s: %+v, want %+v", slot, got, want[slot])
					}
				}
			}
		}
	})
}

// lives returns, of each booking that the history leaves open, the Add that
// made it and the events since.
func lives(history []Event) [][]Event {
	var open [][]Event
	for _, e := range history {
		at := -1
		for i, life := range open {
			if life[0].Request == e.Request && life[0].Attempt == e.Attempt {
				at = i
			}
		}
		switch {
		case at < 0 && e.Kind == Add:
			open = append(open, []Event{e})
		case at >= 0 && e.Kind == Free:
			open = append(open[:at], open[at+1:]...)
		case at >= 0 && e.Kind != Add:
			open[at] = append(open[at], e)
		}
	}
	return open
}
