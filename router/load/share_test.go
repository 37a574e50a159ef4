package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSharesAddUp has three gateways book on the same workers at random, and send each other their shares. Each has to
// know as much as one gateway that booked all of it: of the accounts, and of the time that prompts should yet take.
func TestSharesAddUp(t *testing.T) {
	const seed = 3
	r := rand.New(rand.NewPCG(seed, 0))
	books, names := []*Book{NewBook(), NewBook(), NewBook()}, []string{"a", "b", "c"}
	for _, b := range books {
		b.Watch()
	}
	chains := [][]uint64{{1, 2, 3}, {1, 4, 5}}
	now := noon
	open := make([][]string, len(books))
	for step := range 4000 {
		now = now.Add(time.Duration(r.IntN(20)) * time.Millisecond)
		g := r.IntN(len(books))
		b := books[g]
		if n := len(open[g]); n == 0 || n < 8 && r.IntN(3) == 0 {
			id := fmt.Sprint(step)
			open[g] = append(open[g], id)
			b.Apply(Event{
				Request: id, Kind: Add, Worker: fmt.Sprint("w", r.IntN(3)), Rank: r.IntN(2), PrefillTokens: r.IntN(900), Blocks: r.IntN(50),
				PrefillTime: time.Duration(r.IntN(300)) * time.Millisecond, Expected: r.IntN(20), Chain: chains[r.IntN(2)][:r.IntN(4)],
			}, now)
		} else {
			i := r.IntN(n)
			kind := []Kind{PrefillDone, Grow, Free}[r.IntN(3)]
			b.Apply(Event{Request: open[g][i], Kind: kind, Blocks: r.IntN(5)}, now)
			if kind == Free {
				open[g] = slices.Delete(open[g], i, i+1)
			}
		}
		for i, from := range books {
			from.Changes(now, func(s Shared) {
				for j, to := range books {
					if i != j {
						to.ApplyShare(names[i], s, now)
					}
				}
			})
		}
		for w := range 3 {
			for rank := range 2 {
				var sum Account
				var left time.Duration
				prefill := 0
				for _, b := range books {
					p := b.Page(fmt.Sprint("w", w), rank)
					own := p.own(now)
					sum.add(own.Account, 1)
					left += own.Left
					prefill += own.PrefillTokens
					if p.queued > 0 {
						prefill -= p.line.done(now)
					}
				}
				for i, b := range books {
					p := b.Page(fmt.Sprint("w", w), rank)
					require.True(t, p.Account == sum,
						"seed %d, step %d: gateway %d has %+v of worker %d, all together have booked %+v", seed, step, i, p.Account, w, sum)
					require.Equal(t, left, p.Left(now),
						"seed %d, step %d: gateway %d expects N of worker %d, all together", seed, step, i, w)
					if got := p.Prefill(now); got < prefill-len(books) || got > prefill+len(books) { // a token each for rounding
						t.Fatalf("seed %d, step %d: gateway %d expects %d tokens of worker %d, all together %d", seed, step, i, got, w, prefill)
					}
				}
			}
		}
	}
	for i := range books {
		for _, id := range open[i] {
			books[i].Apply(Event{Request: id, Kind: Free}, now)
		}
		books[i].Changes(now, func(s Shared) {
			for j, to := range books {
				if i != j {
					to.ApplyShare(names[i], s, now)
				}
			}
		})
	}
	for i, b := range books {
		for s, p := range b.accounts {
			assert.True(t, p.Account == Account{} && p.others == 0,
				"gateway %d has %+v of %s left, of %d others", i, p.Account, s.worker, p.others)
		}
	}
}

// TestAnotherPromptIsAnotherShare: where one prompt follows another of the same length, as slices of a long one do, the
// account is as it was and the worker is busy for as long again: the others have to hear of it.
func TestAnotherPromptIsAnotherShare(t *testing.T) {
	b := NewBook()
	b.Watch()
	var last Shared
	for i := range 3 {
		now := noon.Add(time.Duration(i) * time.Second)
		if i > 0 {
			b.Apply(Event{Request: fmt.Sprint(i - 1), Kind: Free}, now)
		}
		b.Apply(Event{Request: fmt.Sprint(i), Kind: Add, Worker: "w", PrefillTokens: 4096, PrefillTime: time.Second}, now)
		b.Changes(now, func(s Shared) {
			assert.True(t, s.Left == time.Second && (i <= 0 || s.Account == last.Account && s.Line != last.Line),
				"slice %d: %+v after %+v", i, s, last)
			last = s
		})
	}
}
