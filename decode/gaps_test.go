package decode

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
)

// Every gap lies in its bucket, and a bucket's end is within a quarter of any
// gap in it.
func TestGapBuckets(t *testing.T) {
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, 1))
	check := func(d time.Duration) {
		t.Helper()
		b := gapBucket(d)
		require.True(t, b >= 0 && b < gapBuckets, "seed %d: %v is in bucket %d", seed, d, b)
		above := gapAbove(b)
		require.True(t, b == gapBuckets-1 || above > d && (b <= 3 || float64(above) <= 1.25*float64(d)+1),
			"seed %d: %v is in bucket %d, which ends at %v", seed, d, b, above)
		require.True(t, b == 0 || gapAbove(b-1) <= d, "seed %d: %v is in bucket %d, but the one before reaches it", seed, d, b)
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Millisecond, 4 << 20, 4<<20 - 1, 1<<42 - 1, 1 << 42, math.MaxInt64} {
		check(d)
	}
	for range 100_000 {
		check(time.Duration(rng.Int64() >> rng.IntN(63)))
	}
}

// The estimate is at or just above the sorted one.
func TestGapPercentile(t *testing.T) {
	const seed = 12
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, n := range []int{gapLeast, 1000, gapMemory - 1} {
		var g gaps
		all := make([]time.Duration, n)
		for i := range all {
			all[i] = time.Duration(float64(20*time.Millisecond) * math.Exp(rng.NormFloat64()))
			g.observe(uint8(gapBucket(all[i])), 1)
		}
		slices.Sort(all)
		exact := all[n-1-n/100]
		got := g.p99()
		assert.True(t, got >= exact && float64(got) <= 1.26*float64(exact),
			"seed %d: p99 of %d gaps is %v, exactly %v", seed, n, got, exact)
	}
}

// Too few gaps give no estimate, and old ones fade.
func TestGapsForget(t *testing.T) {
	var g gaps
	after := func(gap time.Duration, n int) time.Duration {
		for range n {
			g.observe(uint8(gapBucket(gap)), 1)
		}
		return g.p99()
	}
	assert.Zero(t, after(2*time.Second, gapLeast-1), "p99 of too few gaps")
	assert.GreaterOrEqual(t, after(2*time.Second, 5*gapMemory), 2*time.Second)
	assert.LessOrEqual(t, after(20*time.Millisecond, 5*gapMemory), 25*time.Millisecond)
}

// The memory of a call is reused only when no look of its watch is to come.
func TestLooksHoldTheirCall(t *testing.T) {
	var runs http1.Pool[run, *run]
	for name, c := range map[string]struct {
		fires func(w *watch)
		looks int // to come
	}{
		"never":                       {func(w *watch) { w.firstToken() }, 0},
		"before the end":              {func(w *watch) { w.firstToken(); w.timer.Stop() }, 1},
		"before it was set again":     {func(w *watch) { w.timer.Stop(); w.firstToken() }, 1},
		"before it was set by a look": {func(w *watch) { w.timer.Stop(); w.look() }, 0},
	} {
		in := runs.Take()
		in.Begin(context.Background())
		in.tap.plain = []byte("mine")
		w := &in.watch
		w.arm(Config{}, &seen{}, limits{first: time.Hour}, &in.Lifetime)
		c.fires(w) // a timer that was stopped reports what one that fired does
		w.stop()
		in.Close()
		for range c.looks {
			assert.NotNil(t, in.tap.plain, "%s: it is reused before a look", name)
			w.look()
		}
		assert.Nil(t, in.tap.plain, "%s: it is not reused", name)
	}
}
