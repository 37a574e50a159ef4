package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// prefilled is a core that has just finished a prefill of n tokens for a
// decode engine.
func prefilled(t *testing.T, n int) (*Core, *Pinned, time.Time) {
	t.Helper()
	c := newTestCore(t, Config{})
	mustAdd(t, c, Request{ID: "p", Prompt: prompt(1, n), MaxTokens: 1, IgnoreEOS: true, Pin: true})
	end := epoch
	r := c.Step(end)
	for len(r.Outputs) == 0 {
		end = r.Next
		r = c.Step(end)
	}
	require.NotNil(t, r.Outputs[0].Pinned, "the prefill ended with %+v", r.Outputs)
	return c, r.Outputs[0].Pinned, end
}

func TestFinishedPrefillStaysPinnedForItsLease(t *testing.T) {
	for _, tc := range []struct {
		name  string
		beats []time.Duration // after the prefill's end
		held  time.Duration
	}{
		{"no heartbeat", nil, 30 * time.Second},
		{"an early one changes nothing", []time.Duration{5 * time.Second}, 30 * time.Second},
		{"a later one adds", []time.Duration{25 * time.Second}, 45 * time.Second},
		{"many add no more", []time.Duration{25 * time.Second, 25 * time.Second, 25 * time.Second}, 45 * time.Second},
		{"one after another", []time.Duration{25 * time.Second, 40 * time.Second}, 60 * time.Second},
	} {
		c, p, end := prefilled(t, 100)
		if want := blocksFor(100, 16); c.cache.active() != want || len(p.BlockIDs) != want || p.Tokens != 100 {
			t.Fatalf("%d blocks active, %d named for %d tokens", c.cache.active(), len(p.BlockIDs), p.Tokens)
		}
		for _, b := range tc.beats {
			assert.True(t, c.Heartbeat("p", end.Add(b)), "%s: no lease after %v", tc.name, b)
		}
		c.Step(end.Add(tc.held - 1))
		assert.NotZero(t, c.cache.active(), "%s: freed before %v", tc.name, tc.held)
		r := c.Step(end.Add(tc.held))
		assert.True(t, c.cache.active() == 0 && r.Next.IsZero() && c.Stats().LapsedLeases == 1,
			"%s: %d blocks active after %v", tc.name, c.cache.active(), tc.held)
	}
}

func TestProducerChecksWhatIsAskedFor(t *testing.T) {
	c, p, now := prefilled(t, 100)
	good := Remote{RequestID: "p", BlockIDs: [][]int32{p.BlockIDs}}
	for _, tc := range []struct {
		name   string
		remote Remote
		tokens int
		err    error
	}{
		{"all right", good, 100, nil},
		{"another request", Remote{RequestID: "q", BlockIDs: good.BlockIDs}, 100, ErrNotHeld},
		{"other blocks", Remote{RequestID: "p", BlockIDs: [][]int32{{1, 2}}}, 100, ErrMismatch},
		{"no blocks", Remote{RequestID: "p"}, 100, ErrMismatch},
		{"two cache groups", Remote{RequestID: "p", BlockIDs: [][]int32{p.BlockIDs, p.BlockIDs}}, 100, ErrMismatch},
		{"a longer prompt", good, 101, ErrMismatch},
	} {
		if _, err := c.Fetch(tc.remote, tc.tokens, tc.tokens, now); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.err)
		}
	}
	assert.True(t, c.Release("p") && !c.Release("p") && c.cache.active() == 0,
		"released once, %d blocks are active", c.cache.active())
	if _, err := c.Fetch(good, 100, 100, now); !errors.Is(err, ErrNotHeld) {
		t.Errorf("after the release: %v", err)
	}
}

func TestNICCarriesOneTransferAtATime(t *testing.T) {
	c, p, now := prefilled(t, 12_000)
	one := c.transferTime(12_000)
	assert.Equal(t, time.Millisecond+62_914_560*time.Nanosecond, one, "12,000 tokens take")
	r := Remote{RequestID: "p", BlockIDs: [][]int32{p.BlockIDs}}
	for i := range 3 {
		wait, err := c.Fetch(r, 12_000, 12_000, now)
		assert.True(t, err == nil && wait == time.Duration(i)*one,
			"transfer %d waits for %v, want %v (%v)", i, wait, time.Duration(i)*one, err)
	}
	if wait, _ := c.Fetch(r, 12_000, 12_000, now.Add(time.Minute)); wait != 0 {
		t.Errorf("an idle NIC makes wait for %v", wait)
	}
}

func TestDecodeRunsWhenItsBlocksHaveCome(t *testing.T) {
	c := newTestCore(t, Config{})
	p := prompt(1, 2000)
	// The first 1,008 tokens are here already.
	mustAdd(t, c, Request{ID: "warm", Prompt: p[:1010], MaxTokens: 1})
	_, now := drive(t, c, epoch)
	mustAdd(t, c, Request{ID: "d", Prompt: p, MaxTokens: 2, IgnoreEOS: true, Remote: &Remote{RequestID: "p"}})
	r := c.Step(now)
	if len(r.Fetches) != 1 || r.Fetches[0].Tokens != 2000-1008 || r.Fetches[0].PromptTokens != 2000 || !r.Next.IsZero() {
		t.Fatalf("fetches %+v, next %v", r.Fetches, r.Next)
	}
	if a := c.Awaited(); len(a) != 1 || a[0].RequestID != "p" {
		t.Errorf("awaited %+v", a)
	}
	assert.Equal(t, 125, c.cache.active(), "blocks held during the transfer, want 125")
	c.Fetched("d", 3*time.Millisecond, now)
	landed := now.Add(3*time.Millisecond + c.transferTime(2000-1008))
	if r = c.Step(now); !r.Next.Equal(landed) {
		t.Errorf("lands %v after the answer, want %v", r.Next.Sub(now), landed.Sub(now))
	}
	r = c.Step(landed)
	assert.True(t, len(r.Releases) == 1 && r.Releases[0].RequestID == "p", "releases %+v after landing", r.Releases)
	assert.Equal(t, Qwen3Latency().Step(1, 2000, 0), r.Next.Sub(landed), "first token N after landing, want one decode step")
	outs, _ := drive(t, c, r.Next)
	assert.True(t, len(outs) == 2 && outs[0].Cached == 1999, "outputs %+v, want two with 1999 tokens cached", outs)
}

func TestProducerIsToldWhateverTheEnd(t *testing.T) {
	lost := errors.New("lost")
	for _, tc := range []struct {
		name   string
		end    func(c *Core)
		reason Reason
	}{
		{"aborted in the transfer", func(c *Core) { c.Fetched("d", 0, epoch); c.Abort("d") }, Aborted},
		{"aborted before the producer answers", func(c *Core) { c.Abort("d") }, Aborted},
		{"aborted, then the producer answers", func(c *Core) { c.Abort("d"); c.Fetched("d", 0, epoch) }, Aborted},
		{"failed", func(c *Core) { c.FetchFailed("d", lost) }, LoadFailed},
		{"failed twice", func(c *Core) { c.FetchFailed("d", lost); c.FetchFailed("d", lost) }, LoadFailed},
	} {
		c := newTestCore(t, Config{})
		mustAdd(t, c, Request{ID: "d", Prompt: prompt(1, 100), Remote: &Remote{RequestID: "p"}})
		c.Step(epoch)
		tc.end(c)
		r := c.Step(epoch)
		assert.True(t, len(r.Releases) == 1 && len(r.Outputs) == 1 && r.Outputs[0].Reason == tc.reason,
			"%s: releases %+v, outputs %+v", tc.name, r.Releases, r.Outputs)
		assert.True(t, c.cache.active() == 0 && r.Next.IsZero(),
			"%s: %d blocks active, next %v", tc.name, c.cache.active(), r.Next)
	}
}
