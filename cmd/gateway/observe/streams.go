package observe

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Streams counts what was generated for a model since the start.
type Streams struct {
	Tokens float64
	Gaps   Gaps
}

// Gaps counts the times between two tokens, in the metric's buckets.
type Gaps struct {
	counts [17]float64 // by bucket; the last is above the greatest bound
}

// Streams reads the counters of a model from the metrics, so that a token is counted once.
func (o *Observer) Streams(model string) (s Streams) {
	of := o.models.Get(model, func() *series { return o.newSeries(model) })
	var m dto.Metric
	if of.outputTokens.Write(&m) == nil {
		s.Tokens = m.GetCounter().GetValue()
	}
	m = dto.Metric{}
	if h, ok := of.itl.(prometheus.Metric); !ok || h.Write(&m) != nil {
		return s
	}
	below := 0.
	for i, b := range m.GetHistogram().GetBucket() {
		s.Gaps.counts[i] = float64(b.GetCumulativeCount()) - below
		below = float64(b.GetCumulativeCount())
	}
	s.Gaps.counts[len(gapBuckets)] = float64(m.GetHistogram().GetSampleCount()) - below
	return s
}

// Plus returns the sum of both.
func (g Gaps) Plus(o Gaps) Gaps {
	for i, n := range o.counts {
		g.counts[i] += n
	}
	return g
}

// Minus returns the growth since o.
func (g Gaps) Minus(o Gaps) Gaps {
	for i, n := range o.counts {
		g.counts[i] -= n
	}
	return g
}

// Quantile returns seconds, NaN if empty. It interpolates within a bucket, as PromQL's histogram_quantile does.
func (g Gaps) Quantile(q float64) float64 {
	all := 0.
	for _, n := range g.counts {
		all += n
	}
	left := q * all
	for i, n := range g.counts {
		if left -= n; left > 0 || n == 0 {
			continue
		}
		low, high := 0., gapBuckets[min(i, len(gapBuckets)-1)]
		if i > 0 {
			low = gapBuckets[i-1]
		}
		return low + (high-low)*(1+left/n)
	}
	return math.NaN()
}
