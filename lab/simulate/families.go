package simulate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// FamilyPlan is requests of one kind that are made up, in addition to those of a trace or alone: their lengths are
// lognormal, and they may come in bursts.
type FamilyPlan struct {
	Rate     float64       `yaml:"rate"` // requests a second, on average
	Duration time.Duration `yaml:"duration"`
	// From is when its time begins. It comes again Every so long, Times times in all; once where Times is 0.
	From  time.Duration `yaml:"from"`
	Every time.Duration `yaml:"every"`
	Times int           `yaml:"times"`
	// Siblings is how many requests come at one time and share SharedTokens of their own; 0 and 1 for none.
	Siblings int `yaml:"siblings"`
	// Burst is the variance of the number of requests in 10 s over its mean: 1, a Poisson stream, where it is 0.
	Burst float64 `yaml:"burst"`
	// SharedTokens begin every prompt of the family; Input is the length of what follows, Output that of the answer.
	SharedTokens int    `yaml:"shared_tokens"`
	Input        Spread `yaml:"input"`
	Output       Spread `yaml:"output"`
}

// Spread is a lognormal distribution of lengths, in tokens. Values above one and a half times P99 are cut.
type Spread struct {
	P50 int `yaml:"p50"`
	P99 int `yaml:"p99"`
}

// z99 is the standard normal quantile of .99.
const z99 = 2.3263

// window is the stretch of time that has one rate in a family with bursts.
const window = 10 * time.Second

// withFamilies returns base and the requests of all families, in the order of their times.
func (w *WorkloadPlan) withFamilies(base []replay.Request, seed uint64) []replay.Request {
	all := slices.Clone(base)
	for i := range w.Families {
		all = w.Families[i].appendTo(all, i, rand.New(rand.NewPCG(seed, math.MaxUint64-2-uint64(i))))
	}
	slices.SortStableFunc(all, func(a, b replay.Request) int { return cmp.Compare(a.At, b.At) })
	for i := range all {
		all[i].Index = i
	}
	return all
}

// appendTo draws the family's requests.
func (f *FamilyPlan) appendTo(all []replay.Request, family int, rng *rand.Rand) []replay.Request {
	serial := 0
	for round := range max(1, f.Times) {
		all = f.round(all, f.From+time.Duration(round)*f.Every, family, &serial, rng)
	}
	return all
}

// round draws the requests of one of its times, which begins at start.
func (f *FamilyPlan) round(all []replay.Request, start time.Duration, family int, serial *int, rng *rand.Rand) []replay.Request {
	for from := time.Duration(0); from < f.Duration; from += window {
		length := min(window, f.Duration-from)
		mean := f.Rate * window.Seconds()
		rate := f.Rate
		if f.Burst > 1 { // counts of a Poisson stream whose rate is gamma are negative binomial: mean + mean²/shape
			shape := mean / (f.Burst - 1)
			rate *= float64(gamma(shape, rng) / shape)
		}
		for at := -math.Log1p(-rng.Float64()) / rate; at < length.Seconds(); at += -math.Log1p(-rng.Float64()) / rate {
			shared := spanID(4, family)
			if f.Siblings > 1 {
				shared = spanID(4, family<<32+*serial+1)
			}
			for range max(1, f.Siblings) {
				var spans []replay.Span
				if f.SharedTokens > 0 {
					spans = append(spans, replay.Span{ID: shared, Tokens: f.SharedTokens})
				}
				spans = append(spans, replay.Span{ID: spanID(5, family<<32+*serial), Tokens: f.Input.draw(rng)})
				due := start + from + time.Duration(math.Round(float64(at*1e9)))
				all = append(all, replay.Request{At: due, Spans: spans, OutputTokens: f.Output.draw(rng)})
				*serial++
			}
		}
	}
	return all
}

// draw is a length.
func (s Spread) draw(rng *rand.Rand) int {
	sigma := math.Log(float64(s.P99)/float64(s.P50)) / z99
	n := math.Round(float64(float64(s.P50) * math.Exp(float64(sigma*rng.NormFloat64()))))
	return int(max(1, min(n, 1.5*float64(s.P99))))
}

// gamma draws from the gamma distribution of that shape and scale 1 (Marsaglia and Tsang, 2000).
func gamma(shape float64, rng *rand.Rand) float64 {
	if shape < 1 {
		u := rng.Float64()
		return float64(gamma(shape+1, rng) * math.Pow(u, 1/shape))
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(rng.Float64()) < float64(.5*x*x)+d-float64(d*v)+float64(d*math.Log(v)) {
			return float64(d * v)
		}
	}
}

// checkFamilies rejects invalid families.
func (v *Variant) checkFamilies() error {
	for i, f := range v.plan.Workload.Families {
		fine := func(s Spread) bool { return s.P50 >= 1 && s.P99 >= s.P50 && s.P99 <= 1<<22 }
		switch {
		case !(f.Rate > 0) || f.Rate > 1e6 || f.Duration <= 0:
			return v.doc.Errorf("workload.families", "the family number %d needs a rate above 0 and a duration", i+1)
		case !(f.Burst >= 0) || f.Burst > 1e4 || f.SharedTokens < 0 || f.SharedTokens > 1<<22:
			return v.doc.Errorf("workload.families", "the family number %d has a burst or shared_tokens out of range", i+1)
		case f.From < 0 || f.Times < 0 || f.Times > 1000 || f.Times > 1 && f.Every <= 0 || f.Siblings < 0 || f.Siblings > 1000:
			return v.doc.Errorf("workload.families", "the family number %d has from, every, times or siblings out of range", i+1)
		case !fine(f.Input) || !fine(f.Output):
			return v.doc.Errorf("workload.families", "the family number %d needs input and output with p50 and, no smaller, p99", i+1)
		}
	}
	return nil
}
