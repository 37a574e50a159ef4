package observe

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// observed is what was observed of one worker's process: memory of fixed size, and the same for its latest figures.
type observed struct {
	id   string
	fits *speed.Fits // of the time between tokens

	ttft, gap atomic.Uint64 // the latest, as bits of float64 seconds; 0 is none
	isl       atomic.Int64  // of the request that set ttft

	running atomic.Int64 // calls through this gateway
	others  atomic.Int64 // requests that other gateways have booked
	context atomic.Int64 // tokens in its booked blocks
	tokens  atomic.Int64 // that came gap by gap, and the sum of the gaps
	gaps    atomic.Int64

	mu             sync.Mutex // guards all below
	incarnation    string
	since          time.Time // of its first call
	answers        int
	kind           speed.Kind
	taken          time.Time // when the gaps were last taken
	atTaken        [2]int64  // tokens and gaps then
	prompt, answer fault.Pace
	first          fault.Pace // the time of each call to its first token or answer; the load is always 1
	calls          fault.Share
	rate           throughput
	standing       fault.Standing
}

// throughput is tokens a second over about the last minute.
type throughput struct {
	tokens float64
	latest time.Time
}

const throughputFades = time.Minute

func (t *throughput) add(n int, now time.Time) {
	t.tokens, t.latest = t.perSecond(now)*throughputFades.Seconds()+float64(n), now
}

func (t *throughput) perSecond(now time.Time) float64 {
	return t.tokens * math.Exp(-now.Sub(t.latest).Seconds()/throughputFades.Seconds()) / throughputFades.Seconds()
}

// firstToken records a request's TTFT on the worker that computed its prompt.
func (w *observed) firstToken(seconds float64, isl int) {
	w.ttft.Store(math.Float64bits(seconds))
	w.isl.Store(int64(isl))
}

// began counts a call. A worker's next process begins without figures.
func (w *observed) began(of *pools.Worker) {
	w.running.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.incarnation != of.Incarnation {
		w.kind = prefill.KindOf(of)
		w.since, w.answers = time.Now(), 0
		w.incarnation, w.prompt, w.answer, w.first, w.calls = of.Incarnation, fault.Pace{}, fault.Pace{}, fault.Pace{}, fault.Share{}
		w.rate, w.standing = throughput{}, fault.Standing{}
	}
}

const (
	// takeTokens is after how many tokens of a worker their gaps may be taken, and takeEvery how often at most.
	takeTokens = 8
	takeEvery  = 250 * time.Millisecond
)

// token counts a token that came gap after the previous one of its stream. It runs for every token of every stream.
func (w *observed) token(gap time.Duration) {
	w.gap.Store(math.Float64bits(gap.Seconds()))
	w.gaps.Add(int64(gap))
	if w.tokens.Add(1)%takeTokens != 0 || !w.mu.TryLock() {
		return
	}
	defer w.mu.Unlock()
	now := time.Now()
	if now.Sub(w.taken) < takeEvery {
		return
	}
	sums := [2]int64{w.tokens.Load(), w.gaps.Load()}
	n, sum := sums[0]-w.atTaken[0], sums[1]-w.atTaken[1]
	w.taken, w.atTaken = now, sums
	batch, mean := int(max(1, w.running.Load()+w.others.Load())), time.Duration(sum/max(1, n))
	w.answer.Observe(batch, mean, now)
	w.fits.Observe(w.kind, w.id, w.incarnation, batch, int(w.context.Load()), mean, now)
	w.rate.add(int(n), now)
}

// started records a call's first token, or prefill's answer.
func (w *observed) started(r *handoff.Record, leg handoff.Leg) {
	took, prefills := leg.First.Sub(leg.Began), leg.Worker.Role == pools.Prefill
	if !prefills && !r.Call.Request.Stream {
		return // the whole answer
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first.Observe(1, took, leg.First)
	if leg.Worker.Role != pools.Decode && // media take what no count of tokens shows
		!r.Call.Request.HasMedia() {
		w.prompt.Observe(leg.Backlog, took, leg.First)
	}
	if prefills {
		w.rate.add(max(0, r.ISL-max(0, r.OverlapTokens)), leg.First)
	}
}

// ended counts the end of a call. Its failure, if any, is counted by failed.
func (w *observed) ended(leg handoff.Leg) {
	w.running.Add(-1)
	if leg.First.IsZero() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers++
	w.calls.Observe(false, time.Now())
}

// failed counts a call that failed by the worker's fault.
func (w *observed) failed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls.Observe(true, time.Now())
}

// figures adds what was observed of a worker to its report.
func (w *observed) figures(out *WorkerReport, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out.TTFT, out.ITL = w.first.Typical(now).Seconds(), w.answer.Typical(now).Seconds()
	out.TokensPerSecond = w.rate.perSecond(now)
	if share, known := w.calls.Failed(now); known {
		out.Failed = share
	}
	out.PrefillSpeed, out.DecodeSpeed, out.Outlier = w.standing.Prefill, w.standing.Decode, w.standing.Outlier
}

// judgeEvery is how often workers are compared.
const judgeEvery = time.Second

// Run compares the workers of each pool once a second until ctx ends. It calls wake where a worker is ejected no longer.
func (f *Fleet) Run(ctx context.Context, wake func(model string)) error {
	ticks := time.NewTicker(judgeEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticks.C:
			for _, model := range f.judge(now) {
				wake(model)
			}
		}
	}
}

// judge compares the workers of each pool, and drops what was observed of workers that left. It returns the models with
// a worker that is ejected no longer.
func (f *Fleet) judge(now time.Time) (freed []string) {
	all, ejected := f.rooms.Roster.Pools(), map[poolKey][]string{}
	f.observer.forget(all)
	for _, p := range all {
		loads, before := f.loads(p), map[string]fault.Standing{}
		seen, able := make([]fault.Observed, 0, len(p.Members)), []string{}
		for i := range p.Members {
			m := p.Members[i].Worker
			if p.Members[i].Eligible(now) {
				able = append(able, m.ID)
			}
			w := f.observer.worker(m.ID)
			w.others.Store(int64(loads[i].Others.Requests))
			w.context.Store(int64(loads[i].ActiveBlocks * m.BlockSize))
			w.mu.Lock()
			prompt, answer, calls := w.prompt, w.answer, w.calls
			before[m.ID] = w.standing
			w.mu.Unlock()
			seen = append(seen, fault.Observed{
				Worker: m.ID, Kind: m.Engine + " " + m.DeviceClass, Prefill: &prompt, Decode: &answer, Calls: &calls,
			})
		}
		standings := fault.Judge(seen, before, now)
		out := fault.Ejected(standings, able, f.observer.cfg.Ejection)
		ejected[poolKey{p.Model, p.Role}] = out
		if f.announce(p, before, standings, out) {
			freed = append(freed, p.Model)
		}
		for id, s := range standings {
			w := f.observer.worker(id)
			w.mu.Lock()
			w.standing = s
			w.mu.Unlock()
		}
	}
	f.ejected.Store(&ejected)
	return freed
}

// announce logs which workers of a pool became outliers or are ejected, and which are so no longer. It reports whether one
// of them gets requests again.
func (f *Fleet) announce(p *pools.Pool, before, now map[string]fault.Standing, ejected []string) (freed bool) {
	for id, s := range now {
		log := f.observer.log.log.With("worker", id, "model", p.Model, "role", string(p.Role))
		switch was := before[id].Outlier; s.Outlier {
		case was:
		case "":
			log.Info("worker is like the others again", "was", was)
		default:
			log.Warn("worker is an outlier", "outlier", s.Outlier, "speed", math.Round(s.Slowest()*100)/100, "was", was)
		}
		switch is := slices.Contains(ejected, id); {
		case is == slices.Contains(f.Ejected(p), id):
		case is:
			log.Warn("worker ejected: it gets no new requests")
		default:
			log.Info("worker gets requests again")
			freed = true
		}
	}
	return freed
}
