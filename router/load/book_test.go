package load

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestPrune(t *testing.T) {
	b := NewBook()
	idle, kept, busy := b.Page("idle", 0), b.Page("kept", 0), b.Page("busy", 0)
	b.Apply(Event{Request: "a", Kind: Add, Worker: "busy", Blocks: 3}, noon)
	b.Prune(func(worker string) bool { return worker == "kept" })
	assert.True(t, b.Page("kept", 0) == kept && b.Page("busy", 0) == busy,
		"pruning closed an account that is kept, or has a booking")
	assert.True(t, b.Page("idle", 0) != idle, "pruning left an idle account open")
}

// TestTwin enters random events and compares every account with what the list
// of events says, computed from the start each time, and whether an event changes anything.
func TestTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBook()
		var history []Event
		was := map[string]Account{}
		for range rapid.IntRange(0, 120).Draw(t, "events") {
			e := Event{
				Request:       rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "request"),
				Attempt:       rapid.IntRange(0, 1).Draw(t, "attempt"),
				Kind:          Kind(rapid.IntRange(0, 4).Draw(t, "kind")), // one more than there are
				Worker:        rapid.SampledFrom([]string{"w", "v"}).Draw(t, "worker"),
				Rank:          rapid.IntRange(0, 1).Draw(t, "rank"),
				PrefillTokens: rapid.IntRange(-2, 9).Draw(t, "tokens"),
				Blocks:        rapid.IntRange(-2, 9).Draw(t, "blocks"),
				Inputs:        rapid.IntRange(-1, 4).Draw(t, "inputs"),
			}
			changed := b.Apply(e, noon)
			history = append(history, e)
			want, open := map[string]Account{}, lives(history)
			for _, begin := range open {
				slot := fmt.Sprint(begin[0].Worker, begin[0].Rank)
				a := want[slot]
				a.Requests += max(1, begin[0].Inputs)
				a.ActiveBlocks += max(0, begin[0].Blocks)
				tokens := max(0, begin[0].PrefillTokens)
				for _, e := range begin[1:] {
					if e.Kind == Grow {
						a.ActiveBlocks += max(0, e.Blocks)
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
					require.Equal(t, want[slot], b.Page(worker, rank).Account, slot)
				}
			}
			require.True(t, changed != maps.Equal(was, want) && b.Open() == len(open),
				"%+v changes %v, and %d bookings are open, want %d", e, changed, b.Open(), len(open))
			was = want
		}
	})
}

// lives returns, of each booking that the history leaves open, the Add that made it and the events since.
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
