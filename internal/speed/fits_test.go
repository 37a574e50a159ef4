package speed

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

// truth is how long a worker takes, in seconds.
func truth(uncached, cached int) float64 {
	n, c := float64(uncached)/1000, float64(cached)/1000
	return .008 + .045*n + .0007*n*(c+n/2)
}

// observe has a worker that is so many times slower than the truth answer prompts of all lengths.
func observe(f *Fits, rng *rand.Rand, worker string, slower float64, answers int, at time.Time) {
	for range answers {
		uncached, cached := int(math.Exp(rng.Float64()*7)*30), rng.IntN(2)*rng.IntN(60_000)
		took := truth(uncached, cached) * slower * (1 + .1*rng.NormFloat64())
		f.Observe(kind, worker, "i", uncached, cached, time.Duration(took*float64(time.Second)), at)
	}
}

// wrong is how far the predictions for a worker are off at most.
func wrong(t *testing.T, f *Fits, worker string, slower float64) (most float64) {
	t.Helper()
	for _, uncached := range []int{50, 500, 4000, 30_000} {
		for _, cached := range []int{0, 2000, 50_000} {
			got, ok := f.Predict(kind, worker, 0, uncached, cached)
			require.True(t, ok, "nothing is known of %s", worker)
			most = max(most, math.Abs(got.Seconds()/(truth(uncached, cached)*slower)-1))
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
	f, start := NewFits(Prompt()), time.Unix(1000, 0)
	_, ok := f.Predict(kind, "a", 0, 100, 0)
	assert.False(t, ok, "something is predicted before any answer")
	for _, w := range []string{"a", "b", "slow"} {
		observe(f, rng, w, 1, 1, start)
	}
	warm := start.Add(2 * time.Minute)
	for range 10 {
		observe(f, rng, "a", 1, 40, warm)
		observe(f, rng, "b", 1, 40, warm)
		observe(f, rng, "slow", 3, 10, warm)
	}
	for worker, slower := range map[string]float64{"a": 1, "new": 1, "slow": 3} {
		assert.LessOrEqual(t, wrong(t, f, worker, slower), .35, worker)
	}
	assert.InDelta(t, .08, f.Off("a"), .05, "a tenth of noise")
	observe(f, rng, "a", 2, 60, warm)
	assert.LessOrEqual(t, wrong(t, f, "a", 2), .35, "after it became slower")
	f.Forget(func(string) bool { return true })
	assert.Empty(t, len(f.kinds)+len(f.workers), "what has gone is still known")
}

// What a process does while it warms up, or one that is stuck, changes little for itself, once it has answered as others
// do, and for the others.
func TestOneBadWorkerChangesNoOther(t *testing.T) {
	for name, bad := range map[string]float64{"ten times slower": 10, "a thousand times slower": 1000, "as if nothing were to compute": 1e-6} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(5, 0))
			f, start := NewFits(Prompt()), time.Unix(1000, 0)
			observe(f, rng, "a", 1, 1, start)
			observe(f, rng, "a", 1, 200, start.Add(2*time.Minute))
			before := wrong(t, f, "a", 1)
			observe(f, rng, "bad", bad, warmAnswers, start.Add(2*time.Minute))
			assert.LessOrEqual(t, wrong(t, f, "a", 1), before+.1, "the other, after a warm-up")
			observe(f, rng, "bad", 1, 10, start.Add(4*time.Minute))
			assert.LessOrEqual(t, wrong(t, f, "bad", 1), .4, "after its warm-up")
			observe(f, rng, "bad", bad, 200, start.Add(4*time.Minute))
			observe(f, rng, "a", 1, 20, start.Add(4*time.Minute))
			assert.LessOrEqual(t, wrong(t, f, "a", 1), .4, "the other, beside one that stays so")
		})
	}
}

// A first answer that is ten times too slow, as one that compiles kernels, is made up for by the next few.
func TestAColdStartIsForgotten(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		f, start := NewFits(Prompt()), time.Unix(1000, 0)
		observe(f, rng, "a", 10, 1, start)
		observe(f, rng, "a", 1, 5, start.Add(time.Second))
		for _, tokens := range []int{50, 1000, 4000} {
			got, _ := f.Predict(kind, "a", 0, tokens, 0)
			assert.LessOrEqual(t, distance(got.Seconds(), truth(tokens, 0)), 1.1, "seed %d: %d tokens after five answers", seed, tokens)
		}
		observe(f, rng, "a", 1, 30, start.Add(time.Second))
		assert.LessOrEqual(t, wrong(t, f, "a", 1), .5, "seed %d: after 35", seed)
	}
}

// Short prompts share a step: each keeps a worker for its share of the tokens only, and a long one for all its time but the
// fixed cost.
func TestShortPromptsShareAStep(t *testing.T) {
	f, now := NewFits(Prompt()), time.Unix(1000, 0)
	_, ok := f.Occupied(kind, "a", 64, 0)
	assert.False(t, ok, "before any answer")
	for i := range 400 { // 36 ms up to 1,000 tokens, then 25 ms a thousand more
		tokens := 1 << (4 + i%11)
		took := 36*time.Millisecond + time.Duration(max(0, tokens-1000))*25*time.Microsecond
		f.Observe(kind, "a", "i", tokens, 0, took, now.Add(time.Duration(i)*time.Second))
	}
	for tokens, want := range map[int]time.Duration{16: 36 * time.Millisecond / together, 128: 3 * time.Millisecond, 8000: 200 * time.Millisecond} {
		got, ok := f.Occupied(kind, "a", tokens, 0)
		assert.True(t, ok && (got-want).Abs() <= want/4, "%d tokens: %v; want about %v", tokens, got, want)
		whole, _ := f.Predict(kind, "a", 0, tokens, 0)
		assert.Greater(t, whole, got, "%d tokens: the first token comes later", tokens)
	}
}

// No coefficient is below 0, whatever is observed: a longer prompt never takes less time.
func TestFitNeverFalls(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			f, now := NewFits(Prompt()), time.Unix(1000, 0)
			for range 60 {
				now = now.Add(time.Duration(rng.IntN(1000)) * time.Second * time.Duration(rng.IntN(2)))
				took := .001 + rng.ExpFloat64()
				f.Observe(kind, "a", "i", 1+rng.IntN(20_000), rng.IntN(50_000), time.Duration(took*float64(time.Second)), now)
			}
			var before time.Duration
			for n := 0; n < 100_000; n += 5000 {
				d, ok := f.Predict(kind, "a", 0, n, n/2)
				require.True(t, ok)
				require.GreaterOrEqual(t, d, before, "%d tokens: %v", n, f.kinds[kind].laws[f.kinds[kind].best].c)
				before = d
			}
		})
	}
}

// No answer allocates, and an answer in many solves.
func TestObserveAllocatesNothing(t *testing.T) {
	f, now := NewFits(Prompt()), time.Unix(1000, 0)
	one := func() {
		f.Observe(kind, "a", "i", 1000, 500, time.Second, now)
		f.Predict(kind, "a", 100, 1000, 500)
		f.Predict(kind, "b", 100, 1000, 500)
	}
	one()
	assert.Zero(t, testing.AllocsPerRun(100, one))
}

func BenchmarkObserve(b *testing.B) {
	f, now := NewFits(Prompt()), time.Unix(1000, 0)
	for i := range b.N {
		f.Observe(kind, "a", "i", 1000+i%7*500, 500, time.Second+time.Duration(i%5)*time.Millisecond, now.Add(2*time.Minute))
	}
}

func BenchmarkPredict(b *testing.B) {
	f := NewFits(Prompt())
	f.Observe(kind, "a", "i", 1000, 500, time.Second, time.Unix(1000, 0))
	for range b.N {
		f.Predict(kind, "a", 0, 1000, 500)
	}
}
