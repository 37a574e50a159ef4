package prefill

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var kind = Kind{Model: "m", Engine: "vllm"}

// law is how long a worker takes in truth, in seconds.
func law(uncached, cached int) float64 {
	n, c := float64(uncached)/1000, float64(cached)/1000
	return .008 + .045*n + .0007*n*(c+n/2)
}

// observe has a worker that is so many times slower than the law answer prompts of all lengths.
func observe(f *Fits, rng *rand.Rand, worker string, slower float64, answers int, at time.Time) {
	for range answers {
		uncached, cached := int(math.Exp(rng.Float64()*7)*30), rng.IntN(2)*rng.IntN(60_000)
		took := law(uncached, cached) * slower * (1 + .1*rng.NormFloat64())
		f.Observe(kind, worker, "i", uncached, cached, time.Duration(took*float64(time.Second)), at)
	}
}

// wrong is how far the predictions for a worker are off at most.
func wrong(t *testing.T, f *Fits, worker string, slower float64) (most float64) {
	t.Helper()
	for _, uncached := range []int{50, 500, 4000, 30_000} {
		for _, cached := range []int{0, 2000, 50_000} {
			got, ok := f.Predict(kind, worker, uncached, cached)
			require.True(t, ok, "nothing is known of %s", worker)
			most = max(most, math.Abs(got.Seconds()/(law(uncached, cached)*slower)-1))
		}
	}
	return most
}

// The law of a kind is found under noise, a slow worker of it is known as such, a new one goes by the others, and all
// of it follows a change.
func TestFitFindsTheLaw(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	f, start := NewFits(), time.Unix(1000, 0)
	for _, w := range []string{"a", "b", "slow"} {
		observe(f, rng, w, 1, 1, start)
	}
	_, ok := f.Predict(kind, "a", 100, 0)
	assert.False(t, ok, "one answer is enough")
	warm := start.Add(2 * time.Minute)
	for range 10 {
		observe(f, rng, "a", 1, 40, warm)
		observe(f, rng, "b", 1, 40, warm)
		observe(f, rng, "slow", 3, 10, warm)
	}
	for worker, slower := range map[string]float64{"a": 1, "new": 1, "slow": 3} {
		assert.LessOrEqual(t, wrong(t, f, worker, slower), .35, worker)
	}
	observe(f, rng, "a", 2, 60, warm)
	assert.LessOrEqual(t, wrong(t, f, "a", 2), .35, "after it became slower")
	f.Forget(func(string) bool { return true })
	assert.Empty(t, len(f.kinds)+len(f.workers), "what has gone is still known")
}

// The first answers of a process and its first minute are not fitted, and a new process starts over.
func TestFitSkipsTheWarmUp(t *testing.T) {
	f, start := NewFits(), time.Unix(1000, 0)
	say := func(incarnation string, answers int, after time.Duration) int {
		for range answers {
			f.Observe(kind, "a", incarnation, 1000, 0, time.Second, start.Add(after))
		}
		if k := f.kinds[kind]; k != nil {
			return k.answers
		}
		return 0
	}
	for _, c := range []struct {
		incarnation string
		answers     int
		after       time.Duration
		fitted      int
	}{
		{"i", 50, 0, 0}, {"i", 1, 59 * time.Second, 0}, {"i", 1, time.Minute, 1}, {"j", 50, 2 * time.Minute, 1}, {"j", 2, time.Hour, 3},
	} {
		assert.Equal(t, c.fitted, say(c.incarnation, c.answers, c.after), "after %v N answers are fitted", c.after)
	}
}

// No coefficient is below 0, whatever is observed: a longer prompt never takes less time.
func TestFitNeverFalls(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			k := &fit{}
			for range 60 {
				k.observe(1+rng.IntN(20_000), rng.IntN(50_000), .001+rng.ExpFloat64())
			}
			before := 0.0
			for n := 0; n < 100_000; n += 5000 {
				s := k.seconds(n, n/2)
				require.GreaterOrEqual(t, s, before, "%d tokens: %v", n, k.c)
				before = s
			}
		})
	}
}
