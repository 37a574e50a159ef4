package observe

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
)

// compared is a fleet without workers, with its roster.
func compared(t *testing.T) (*Fleet, *pools.Roster) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	routers, err := router.NewSet(router.DefaultConfig().ByRole(), log)
	require.NoError(t, err)
	rooms := handoff.Rooms{Roster: roster, Routers: routers, Prefill: prefill.New(prefill.Config{}, roster, nil)}
	return NewFleet(rooms, New(Config{Ejection: .25}, prometheus.NewRegistry(), log, nil)), roster
}

func worker(id string, role pools.Role) pools.Worker {
	return pools.Worker{ID: id, Incarnation: "1", Model: "m", Role: role, Engine: "vllm", Address: "http://127.0.0.1:1", BlockSize: 16,
		Transfer: "127.0.0.1:2", ModelInput: "text"}
}

// call has the observer see a call of n tokens that takes so long for the first one, and for each other.
func call(o *Observer, w *pools.Worker, backlog, n int, first, gap time.Duration) {
	r := &handoff.Record{Call: handoff.Call{Request: &openai.Request{Model: "m", Endpoint: openai.Chat, Stream: true}}, Known: true, ISL: backlog}
	leg := handoff.Leg{Worker: w, Began: time.Now(), Backlog: backlog}
	token := o.LegStarted(r, leg)
	time.Sleep(first)
	leg.First = time.Now()
	o.FirstToken(r, leg)
	for range n - 1 {
		time.Sleep(gap)
		token(gap)
	}
	o.LegEnded(r, leg)
}

// One prefill and one decode worker of four each have 0.15 of the others' speed: GET /workers shows which, by how much and
// what they do in a second. A restarted worker has none of them.
func TestWorkersAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, roster := compared(t)
		var all sync.WaitGroup
		for i := range 4 {
			for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
				w, slow := worker(fmt.Sprintf("%s-%d", role, i), role), 1.
				if i == 2 {
					slow = 1 / .15
				}
				require.NoError(t, roster.Put(w))
				all.Go(func() {
					for n := 0; n < 100; n++ {
						at := time.Duration(slow * float64(time.Millisecond))
						if role == pools.Prefill {
							call(f.observer, &w, 500, 1, 50*at, 0)
						} else {
							call(f.observer, &w, 0, 100, 30*at, 10*at)
						}
					}
				})
			}
		}
		all.Go(func() {
			for range 60 {
				time.Sleep(time.Second)
				f.judge(time.Now())
			}
			byID := map[string]WorkerReport{}
			for _, p := range f.Report() {
				for _, w := range p.Workers {
					byID[w.ID] = w
				}
			}
			slow, like := byID["prefill-2"], byID["prefill-1"]
			assert.Equal(t, fault.SlowPrefill, slow.Outlier)
			assert.InDelta(t, .15, slow.PrefillSpeed, .01, "prefill's speed")
			assert.InDelta(t, .333, slow.TTFT, .01, "its time to an answer")
			assert.Empty(t, like.Outlier)
			assert.True(t, slow.Ejected && !like.Ejected, "ejected")
			assert.InDelta(t, 1, like.PrefillSpeed, .01, "another one's speed")
			slow, like = byID["decode-2"], byID["decode-1"]
			assert.Equal(t, fault.SlowDecode, slow.Outlier)
			assert.InDelta(t, .15, slow.DecodeSpeed, .01, "decode's speed")
			assert.InDelta(t, .0667, slow.ITL, .001, "its time between tokens")
			assert.InDelta(t, .01, like.ITL, .001, "another one's")
			assert.InDelta(t, 60, like.TokensPerSecond, 40, "tokens a second, over the first minute")

			again := worker("decode-2", pools.Decode)
			again.Incarnation = "2"
			f.observer.worker("decode-2").began(&again)
			var fresh WorkerReport
			f.observer.worker("decode-2").figures(&fresh, time.Now())
			assert.Zero(t, fresh, "the next process")
			require.True(t, slow.Ejected)
			roster.Remove("decode-2")
			f.judge(time.Now())
			for _, e := range f.observer.log.journal.Events(Range{Worker: "decode-2"}) {
				assert.NotEqual(t, "worker gets requests again", e.Message, "of a worker that left")
			}
		})
		all.Wait()
	})
}

// Workers that join and leave for an hour, also in the middle of a call, leave no memory.
func TestWorkersLeaveNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, roster := compared(t)
		for i := range 3600 {
			w := worker(fmt.Sprint("decode-", i), pools.Decode)
			require.NoError(t, roster.Put(w))
			f.observer.LegStarted(&handoff.Record{Call: handoff.Call{Request: &openai.Request{Model: "m"}}}, handoff.Leg{Worker: &w})
			if i >= 4 {
				roster.Remove(fmt.Sprint("decode-", i-4))
			}
			time.Sleep(time.Second)
			f.judge(time.Now())
		}
		assert.Equal(t, 4, f.observer.seen.Len(), "workers with observations")
	})
}

// The time between a worker's tokens is predicted for the load that it had, and for a higher one, also of a worker that is
// new; what its latest ones were off is reported.
func TestTokensAreForecast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, roster := compared(t)
		w, next := worker("d", pools.Both), worker("new", pools.Both)
		for _, w := range []pools.Worker{w, next} {
			require.NoError(t, roster.Put(w))
		}
		for _, streams := range []int{1, 8, 32} { // of 4 ms, and 0.1 ms more for each
			var all sync.WaitGroup
			for range streams {
				all.Go(func() {
					call(f.observer, &w, 100, 400, time.Millisecond, 4*time.Millisecond+time.Duration(streams)*100*time.Microsecond)
				})
			}
			all.Wait()
		}
		for _, id := range []string{"d", "new"} {
			for batch, want := range map[int]time.Duration{1: 4100 * time.Microsecond, 32: 7200 * time.Microsecond, 64: 10400 * time.Microsecond} {
				got, ok := f.observer.gaps.Predict(prefill.KindOf(&w), id, 0, batch, 0)
				assert.True(t, ok && (got-want).Abs() <= want/5, "%s, %d streams: %v, %v; want %v", id, batch, got, ok, want)
			}
		}
		assert.InDelta(t, .1, f.observer.gaps.Off("d"), .1)
		assert.Zero(t, f.observer.gaps.Off("new"))
		roster.Remove("d")
		f.judge(time.Now())
		assert.Zero(t, f.observer.gaps.Off("d"), "it has left")
	})
}

// A worker's tokens come on many streams at a time, and cost no allocation.
func TestTokensAreTakenTogether(t *testing.T) {
	w := &observed{fits: speed.NewFits(speed.Token())}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10_000 {
				w.token(10 * time.Millisecond)
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 40_000, w.tokens.Load())
	assert.InDelta(t, 400, time.Duration(w.gaps.Load()).Seconds(), 1e-9)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { w.token(time.Millisecond) }), "allocations a token")
}

func BenchmarkToken(b *testing.B) {
	w := &observed{fits: speed.NewFits(speed.Token())}
	for b.Loop() {
		w.token(time.Millisecond)
	}
}

func BenchmarkJudge128(b *testing.B) {
	all := make([]fault.Observed, 128)
	now := time.Now()
	for i := range all {
		all[i] = fault.Observed{Worker: fmt.Sprint(i), Prefill: &fault.Pace{}, Decode: &fault.Pace{}, Calls: &fault.Share{}}
		for n := range 100 {
			all[i].Prefill.Observe(1<<(n%12), time.Second, now)
			all[i].Decode.Observe(1+n%60, time.Second, now)
		}
	}
	for b.Loop() {
		fault.Judge(all, nil, now)
	}
}
