package simulate

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/router"
)

// Metrics are one run's figures by name, "ttft_s.p99". What a run does not show
// is absent: the latencies of no answer, a percentile of too few.
type Metrics map[string]float64

// metricNames lists every metric in the order of a report.
func metricNames() []string {
	names := []string{"goodput", "within_ttft", "within_itl"}
	for _, d := range []string{"ttft_s", "queue_s", "prefill_s", "itl_ms", "e2e_s", "tbt_ms"} {
		for _, p := range []string{"mean", "p50", "p90", "p99"} {
			names = append(names, d+"."+p)
		}
	}
	return append(names, "hit_rate", "output_tokens_per_s", "requests_per_s", "requests", "shed", "failed",
		"prefill_imbalance", "decode_imbalance", "kv_use", "batch", "queued", "preemptions", "moves", "duration_s", "capacity")
}

func knownMetric(name string) bool { return slices.Contains(metricNames(), name) }

// Measured holds the figures of one run.
type Measured struct {
	Seed    uint64
	Metrics Metrics
	Stages  []StageMeasured
	Classes []StageMeasured // by policy class, where there are any
	Curves  Curves
	GivenUp *GivenUp // nil where the run was not stopped
	Chosen  router.Mode
}

// StageMeasured is one stage's part of it, or one policy class's.
type StageMeasured struct {
	Name    string
	Metrics Metrics
}

// Curves are the data of a run's plots.
type Curves struct {
	// TTFT (seconds) and ITL (milliseconds) at the shares 0, 1 … 100 %, nil where no request has any.
	TTFT, ITL []float64
	// Over time, in seconds since the start.
	At           []float64
	Queued       []float64
	KVUse, Batch []float64 // mean over the workers that decode
	Workers      []replay.WorkerCount
}

// measure reads a run's figures off its outcome.
func measure(v *Variant, seed uint64, stages []Stage, out *Outcome) *Measured {
	m := &Measured{Seed: seed, Metrics: measured(&v.plan.SLO, out, -1, -1)}
	m.Metrics["preemptions"], m.Metrics["moves"] = float64(out.Preemptions), float64(out.Moved)
	m.Curves, m.GivenUp, m.Chosen = curves(v, out), out.GivenUp, out.Chosen
	m.Metrics.means("kv_use", m.Curves.KVUse)
	m.Metrics.means("batch", m.Curves.Batch)
	m.Metrics.means("queued", m.Curves.Queued)
	for _, leg := range []string{"prefill", "decode"} {
		m.Metrics.imbalance(leg, m.Curves.Workers, v.serving(leg))
	}
	if len(stages) > 1 {
		for i := range stages {
			if !stages[i].Warm {
				m.Stages = append(m.Stages, StageMeasured{stages[i].Name, measured(&v.plan.SLO, out, int32(i), -1)})
			}
		}
	}
	if classes := v.plan.Queue.Classes; classes != nil {
		for k := range classes.List {
			m.Classes = append(m.Classes, StageMeasured{classes.Name(k), measured(&v.plan.SLO, out, -1, int32(k))})
		}
	}
	return m
}

// measured reads the figures of one stage, or of all below 0, and of one policy class alike.
func measured(slo *SLO, out *Outcome, stage, class int32) Metrics {
	var samples []replay.Sample
	var tbt []float64
	var kept replay.Kept
	m := Metrics{"shed": 0, "failed": 0}
	for i := range out.Samples {
		s := &out.Samples[i]
		if stage >= 0 && out.StageOf[i] != stage || class >= 0 && out.ClassOf[i] != class || s.Outcome == replay.Cancelled {
			continue
		}
		samples = append(samples, *s)
		longest := time.Duration(0)
		switch {
		case s.Outcome == shed, s.Outcome == expired, s.Refused():
			m["shed"]++
		case s.Outcome != replay.Answered:
			m["failed"]++
		case len(out.TBT) > 0:
			longest = out.TBT[i]
			tbt = append(tbt, float64(longest)/1e6)
		}
		kept.Add(slo, s, longest)
	}
	var from, to time.Duration
	for i, span := range out.Stages {
		switch {
		case stage == int32(i):
			from, to = span.From, span.To
		case stage < 0:
			to = span.To
		}
	}
	sum := replay.Summarize(samples)
	m["requests"] = float64(len(samples))
	if all := float64(len(samples)); all > 0 {
		m["goodput"], m["within_ttft"], m["within_itl"] = float64(kept.Good)/all, float64(kept.TTFT)/all, float64(kept.ITL)/all
	}
	put := func(name string, d replay.Distribution, unit float64) {
		m.distribution(name, d.Count, float64(d.Mean)/unit, float64(d.P50)/unit, float64(d.P90)/unit, float64(d.P99)/unit)
	}
	put("ttft_s", sum.TTFT, 1e9)
	put("queue_s", sum.Queue, 1e9)
	put("prefill_s", sum.Prefill, 1e9)
	put("itl_ms", sum.ITL, 1e6)
	put("e2e_s", sum.E2E, 1e9)
	slices.Sort(tbt)
	m.distribution("tbt_ms", len(tbt), mean(tbt), replay.Quantile(tbt, .5), replay.Quantile(tbt, .9), replay.Quantile(tbt, .99))
	if sum.HitRate != nil {
		m["hit_rate"] = *sum.HitRate
	}
	if seconds := (to - from).Seconds(); seconds > 0 {
		m["duration_s"] = seconds
		m["output_tokens_per_s"] = float64(sum.OutputTokens) / seconds
		m["requests_per_s"] = float64(sum.Answered) / seconds
	}
	for _, leg := range []string{"prefill", "decode"} {
		m.imbalance(leg, sum.Workers, 0)
	}
	return m
}

// distribution puts what so many values show.
func (m Metrics) distribution(name string, values int, mean, p50, p90, p99 float64) {
	if values > 0 {
		m[name+".mean"], m[name+".p50"] = mean, p50
	}
	if values >= replay.LeastForP90 {
		m[name+".p90"] = p90
	}
	if values >= replay.LeastForP99 {
		m[name+".p99"] = p99
	}
}

// means sets the means of the samples, if there are any.
func (m Metrics) means(name string, read []float64) {
	if len(read) > 0 {
		m[name] = mean(read)
	}
}

// imbalance is the most tokens that one worker computed of a leg, over the mean: 1 is even. The mean is of so many
// workers, or of those that served if there were more.
func (m Metrics) imbalance(leg string, workers []replay.WorkerCount, of int) {
	var most, sum, served float64
	for _, w := range workers {
		if w.Role == leg {
			most, sum, served = max(most, float64(w.Tokens)), sum+float64(w.Tokens), served+1
		}
	}
	if sum > 0 {
		m[leg+"_imbalance"] = most * max(served, float64(of)) / sum
	}
}

// shares returns the values of an outcome's distributions.
func shares(out *Outcome) Curves {
	var c Curves
	var ttft, itl []float64
	for i := range out.Samples {
		s := &out.Samples[i]
		if s.Outcome != replay.Answered {
			continue
		}
		if s.TTFT == 0 {
			continue // an answer without a token
		}
		ttft = append(ttft, time.Duration(s.TTFT).Seconds())
		if s.OutputTokens > 1 {
			itl = append(itl, s.ITL.Float())
		}
	}
	c.TTFT, c.ITL = quantiles(ttft), quantiles(itl)
	c.Workers = replay.Summarize(out.Samples).Workers
	return c
}

// quantiles are those at the shares 0, 1 … 100 %; nil of nothing.
func quantiles(values []float64) (all []float64) {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	for share := range 101 {
		all = append(all, replay.Quantile(values, float64(share)/100))
	}
	return all
}

// curves reads a run's plots off its outcome.
func curves(v *Variant, out *Outcome) Curves {
	c := shares(out)
	decodes, n := v.decoders()
	for _, r := range out.Readings {
		var use, batch float64
		for i, e := range r.Engines {
			if !decodes[i] {
				continue
			}
			use, batch = use+ratio(float64(e.ActiveBlocks), float64(e.TotalBlocks)), batch+float64(e.Running)
		}
		c.At, c.Queued = append(c.At, r.At.Seconds()), append(c.Queued, float64(r.Queued))
		c.KVUse, c.Batch = append(c.KVUse, ratio(use, n)), append(c.Batch, ratio(batch, n))
	}
	return c
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return ratio(sum, float64(len(xs)))
}

func ratio(a, b float64) float64 {
	if b == 0 || math.IsNaN(b) {
		return 0
	}
	return a / b
}
