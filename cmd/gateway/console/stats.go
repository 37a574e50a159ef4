package console

import (
	"math"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/fault"
)

const (
	// pointEvery is the time between two points of a chart, and maxPoints how many are stored: a quarter of an hour.
	pointEvery = 5 * time.Second
	maxPoints  = 180
	// minutes is how many of the last are summed, and perMinute the points in each.
	minutes   = 15
	perMinute = int(time.Minute / pointEvery)
	// maxModels bounds the models with figures of their own; all others share one.
	maxModels   = 32
	otherModels = "other models"
)

// latencies counts times in buckets that grow by a quarter of an octave, from half a millisecond to 27 s: a quantile
// is accurate to 9 %.
type latencies [64]uint32

const (
	leastLatency = 500 * time.Microsecond
	perOctave    = 4
)

func (l *latencies) add(d time.Duration) {
	i := 0
	if d > leastLatency {
		i = min(len(l)-1, int(perOctave*math.Log2(float64(d)/float64(leastLatency))))
	}
	l[i]++
}

func (l *latencies) merge(o *latencies) {
	for i, n := range o {
		l[i] += n
	}
}

// quantile returns seconds, NaN if empty.
func (l *latencies) quantile(q float64) float64 {
	var all uint32
	for _, n := range l {
		all += n
	}
	left := q * float64(all)
	for i, n := range l {
		if left -= float64(n); left <= 0 && n > 0 {
			edge := leastLatency.Seconds() * math.Exp2(float64(i)/perOctave)
			return edge * math.Exp2((1+left/float64(n))/perOctave) // position within the bucket
		}
	}
	return math.NaN()
}

// figures are counts over some time.
type figures struct {
	arrived, ended, failed, refused, left int
	rejected                              int // of the failed: for what the client sent
	isl                                   int // prompt tokens of requests whose workers reported their cached tokens
	predicted, actual                     int // of those: tokens expected and found in caches
	ttft                                  latencies
	tokens                                float64 // generated
	gaps                                  observe.Gaps
}

func (f *figures) merge(o *figures) {
	f.arrived, f.ended, f.failed = f.arrived+o.arrived, f.ended+o.ended, f.failed+o.failed
	f.refused, f.left, f.rejected = f.refused+o.refused, f.left+o.left, f.rejected+o.rejected
	f.isl, f.predicted, f.actual, f.tokens = f.isl+o.isl, f.predicted+o.predicted, f.actual+o.actual, f.tokens+o.tokens
	f.ttft.merge(&o.ttft)
	f.gaps = f.gaps.Plus(o.gaps)
}

// hitRate returns the cached share of prompt tokens, NaN if unreported.
func (f *figures) hitRate() float64 { return ratio(f.actual, f.isl) }

// predictedRate returns the predicted share of the same prompts.
func (f *figures) predictedRate() float64 { return ratio(f.predicted, f.isl) }

func ratio(part, all int) float64 {
	if all == 0 {
		return math.NaN()
	}
	return float64(part) / float64(all)
}

// point is one point of a model's charts. Unknown values are NaN.
type point struct {
	at                                                 time.Time
	ttft50, ttft99, itl50, itl99                       float64 // seconds
	requests, tokens, refused, failed, hits, predicted float64 // the first four per second, the others shares
	waiting                                            int
}

// modelStats are one model's figures. The recorder's mu guards them, except points, which the console owns.
type modelStats struct {
	name   string
	now    figures         // since the latest point
	last   observe.Streams // at the latest point
	recent [minutes]figures
	points []point
	taken  int
}

// count adds a finished request.
func (m *modelStats) count(s *summary, refused bool) {
	n := &m.now
	n.ended++
	switch {
	case s.ok():
	case refused:
		n.refused++
	case s.Outcome == fault.ClientGone.String():
		n.left++
	default:
		n.failed++
	}
	if s.TTFT > 0 {
		n.ttft.add(s.TTFT)
	}
	if s.Actual >= 0 && s.ISL > 0 {
		n.isl += s.ISL
		n.actual += min(s.Actual, s.ISL)
		n.predicted += s.Predicted
	}
}

// sample adds a point since the previous one. streams is the total generated.
func (m *modelStats) sample(streams observe.Streams, waiting int, now time.Time) {
	n := &m.now
	n.tokens, n.gaps = streams.Tokens-m.last.Tokens, streams.Gaps.Minus(m.last.Gaps)
	m.last = streams
	each := func(v float64) float64 { return v / pointEvery.Seconds() }
	p := point{
		at: now, ttft50: n.ttft.quantile(.5), ttft99: n.ttft.quantile(.99), itl50: n.gaps.Quantile(.5), itl99: n.gaps.Quantile(.99),
		requests: each(float64(n.ended)), tokens: each(n.tokens), refused: each(float64(n.refused)), failed: each(float64(n.failed)),
		hits: n.hitRate(), predicted: n.predictedRate(), waiting: waiting,
	}
	if len(m.points) == maxPoints {
		copy(m.points, m.points[1:])
		m.points = m.points[:maxPoints-1]
	}
	m.points = append(m.points, p)
	minute := &m.recent[m.taken/perMinute%minutes]
	if m.taken%perMinute == 0 {
		*minute = figures{}
	}
	minute.merge(n)
	m.taken++
	*n = figures{}
}

// Minute returns how many of a model's requests ended in about the last minute, how many of those failed or were
// refused by no fault of their client, and the p99 of the TTFT, 0 unknown.
func (c *Recorder) Minute(model string) (ended, failed int, ttft time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.models[model]
	if m == nil {
		return 0, 0, 0
	}
	sum := m.now
	if m.taken > 0 {
		sum.merge(&m.recent[(m.taken-1)/perMinute%minutes])
	}
	if p99 := sum.ttft.quantile(.99); !math.IsNaN(p99) {
		ttft = time.Duration(p99 * float64(time.Second))
	}
	return sum.ended, sum.failed + sum.refused - sum.rejected, ttft
}

// quarter returns the figures of the last 14 to 15 minutes.
func (m *modelStats) quarter() (sum figures) {
	for i := range m.recent {
		sum.merge(&m.recent[i])
	}
	return sum
}
