package load

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestPromptsFade: the oldest prompt's tokens go evenly over the time it should
// take, never below nothing, and the next one's begin when it is done.
func TestPromptsFade(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	add := func(id string, tokens int, takes time.Duration) Event {
		return Event{Request: id, Kind: Add, Worker: "w", PrefillTokens: tokens, PrefillTime: takes}
	}
	b := NewBook()
	p := b.Page("w", 0)
	b.Apply(add("a", 1000, 100*time.Millisecond), at(0))
	b.Apply(add("b", 500, 50*time.Millisecond), at(10))
	for _, c := range []struct{ ms, want int }{{-5, 1500}, {0, 1500}, {25, 1250}, {100, 500}, {400, 500}} {
		assert.Equal(t, c.want, p.Prefill(at(c.ms)), "at %d ms N tokens", c.ms)
	}
	for _, c := range []struct{ ms, want int }{{-5, 150}, {0, 150}, {25, 125}, {100, 50}, {400, 50}} {
		assert.Equal(t, time.Duration(c.want)*time.Millisecond, p.Left(at(c.ms)),
			"at %d ms they take N more, want %d ms", c.ms, c.want)
	}
	assert.Equal(t, 1500, p.PrefillTokens, "tokens booked, want 1500")
	b.Apply(Event{Request: "a", Kind: PrefillDone}, at(400))
	for _, c := range []struct{ ms, want int }{{400, 500}, {425, 250}, {450, 0}, {999, 0}} {
		assert.Equal(t, c.want, p.Prefill(at(c.ms)), "after the first, at %d ms N tokens", c.ms)
	}
	b.Apply(add("c", 70, 0), at(450)) // how long it takes is unknown
	b.Apply(Event{Request: "b", Kind: Free}, at(460))
	assert.Equal(t, 70, p.Prefill(at(9999)), "of an unknown time N tokens are left, want all 70")
	b.Apply(Event{Request: "c", Kind: Free}, at(460))
	if got := p.Prefill(at(9999)); got != 0 || p.Left(at(9999)) != 0 || len(p.line.prompts) != 0 {
		t.Errorf("%d tokens and %d prompts are left", got, len(p.line.prompts))
	}
}

// TestOutputFades works the weight of blocks out by hand.
func TestOutputFades(t *testing.T) {
	b := NewBook()
	p := b.Page("w", 0)
	now := time.Unix(1000, 0)
	weight := func(step string, blocks int, want float64) {
		t.Helper()
		assert.True(t, p.ActiveBlocks == blocks && p.Weight() == want,
			"%s: %d blocks that weigh %v, want %d and %v", step, p.ActiveBlocks, p.Weight(), blocks, want)
	}
	shared := []uint64{1, 2, 3, 4}
	b.Apply(Event{Request: "a", Kind: Add, Worker: "w", Chain: append(shared, 10, 11), Blocks: 1, Expected: 4}, now)
	b.Apply(Event{Request: "b", Kind: Add, Worker: "w", Chain: append(shared[:4:4], 20)}, now)
	weight("booked", 8, 8)
	grow := func(id string, n int) { b.Apply(Event{Request: id, Kind: Grow, Blocks: n}, now) }
	grow("a", 1)
	weight("a quarter of its output: 2 blocks of its prompt alone, its last in part, 1 of output", 9, 9-4./4)
	grow("b", 2)
	weight("of b nothing is expected", 11, 11-4./4)
	grow("a", 1)
	weight("half of it, 5 blocks", 12, 12-5./2)
	grow("a", 3)
	weight("more than expected", 15, 15-8)
	b.Apply(Event{Request: "b", Kind: Free}, now)
	weight("b has gone", 12, 12-8)
	grow("a", 1)
	weight("a holds all of it alone now", 13, 0)
	b.Apply(Event{Request: "c", Kind: Add, Worker: "w", Blocks: 2, Expected: Unweighed}, now)
	grow("c", 3)
	weight("output that is not weighed", 18, 2)
	b.Apply(Event{Request: "a", Kind: Free}, now)
	b.Apply(Event{Request: "c", Kind: Free}, now)
	assert.True(t, p.Account == (Account{}), "%+v is left", p.Account)
}
