package fault

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// What sets an outlier apart from the other workers of its pool.
const (
	SlowPrefill  = "slow_prefill"
	SlowDecode   = "slow_decode"
	FailingCalls = "failing_calls"
)

const (
	// leastObserved is how many observations a worker needs for a verdict, leastForgotten how many to keep one.
	leastObserved, leastForgotten = 8, 4
	// leastCalls is the same for failed calls.
	leastCalls = 16
	// leastOthers is how many other workers of its kind it is compared with at least: of two, either may be the odd one.
	leastOthers = 2
	// leastTurns is how many judgements in a row make a verdict, so that one burst does not.
	leastTurns = 3
	// slowBelow is the speed that makes an outlier, as a share of the others' median; fastAbove ends that.
	slowBelow, fastAbove = .6, .75
	// failsAbove is the failed share over the others' median that makes an outlier; failsBelow ends that.
	failsAbove, failsBelow = .25, .1
	// robust is how many standard deviations of the others an outlier is away at least. The deviation is the median's, times
	// madScale, which normal values have: Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993). Envoy compares
	// success rates by mean and deviation, which one bad worker of few moves.
	robust, madScale = 3.5, 1.4826
)

// Observed is what was observed of one worker of a pool.
type Observed struct {
	Worker string
	// Kind is the worker's engine and device: only workers of one kind are compared.
	Kind            string
	Prefill, Decode *Pace
	Calls           *Share
}

// Standing is how a worker compares with the others of its kind.
type Standing struct {
	// Prefill and Decode are its speeds at its loads over the others' median: 0.15 is a seventh, 0 unknown.
	Prefill, Decode float64
	// Outlier is one of [SlowPrefill], [SlowDecode] and [FailingCalls], or empty.
	Outlier string
	turns   [3]int // in a row that each looked like an outlier
}

// Slowest returns the lower of both speeds that are known, 0 if none is.
func (s *Standing) Slowest() float64 {
	if s.Prefill == 0 || s.Decode == 0 {
		return s.Prefill + s.Decode
	}
	return min(s.Prefill, s.Decode)
}

// Judge compares the workers of a pool. It returns their standings by id, given the previous ones, and is called about
// once a second.
func Judge(all []Observed, before map[string]Standing, now time.Time) map[string]Standing {
	out := make(map[string]Standing, len(all))
	kinds := map[string][]int{}
	for i := range all {
		kinds[all[i].Kind] = append(kinds[all[i].Kind], i)
	}
	for _, kind := range kinds {
		prefill := paces(all, kind, func(o *Observed) *Pace { return o.Prefill }, now)
		decode := paces(all, kind, func(o *Observed) *Pace { return o.Decode }, now)
		failed := figures{at: make([]figure, len(kind))}
		for k, i := range kind {
			if share, known := all[i].Calls.Failed(now); known {
				failed.set(k, share, leastObserved)
			}
		}
		for k, i := range kind {
			was := before[all[i].Worker]
			s := Standing{turns: was.turns}
			for n, d := range []struct {
				word        string
				of          *figures
				enter, stay float64
				speed       *float64
			}{
				{FailingCalls, &failed, failsAbove, failsBelow, nil},
				{SlowDecode, &decode, -math.Log(slowBelow), -math.Log(fastAbove), &s.Decode},
				{SlowPrefill, &prefill, -math.Log(slowBelow), -math.Log(fastAbove), &s.Prefill},
			} {
				away, known := d.of.away(k)
				if known && d.speed != nil {
					*d.speed = math.Exp(-away)
				}
				is := known && away > d.stay
				if was.Outlier != d.word {
					is = known && away > d.enter && d.of.at[k].samples >= leastObserved && away > robust*d.of.spread(k)
				}
				if s.turns[n]++; !is {
					s.turns[n] = 0
				}
				if s.turns[n] >= leastTurns {
					s.Outlier = d.word
				}
			}
			out[all[i].Worker] = s
		}
	}
	return out
}

// Ejected returns which outliers of a pool get no new requests, the worst first: at most a share of its workers, at least one,
// and never so many that fewer than two others are left. able are the workers that take requests.
func Ejected(standings map[string]Standing, able []string, share float64) []string {
	worst := slices.DeleteFunc(slices.Clone(able), func(id string) bool { return standings[id].Outlier == "" })
	badness := func(id string) float64 {
		if s := standings[id]; s.Outlier != FailingCalls {
			return s.Slowest()
		}
		return 0
	}
	slices.SortFunc(worst, func(a, b string) int { return cmp.Or(cmp.Compare(badness(a), badness(b)), cmp.Compare(a, b)) })
	most := min(max(1, int(share*float64(len(able)))), len(able)-leastOthers)
	if share <= 0 || most <= 0 {
		return nil
	}
	return worst[:min(most, len(worst))]
}

// figures are one figure of each worker of a kind.
type figures struct {
	at    []figure
	known []float64 // sorted
}

type figure struct {
	value   float64
	samples int // 0: unknown
}

func (f *figures) set(k int, value float64, samples int) {
	f.at[k] = figure{value, samples}
	i, _ := slices.BinarySearch(f.known, value)
	f.known = slices.Insert(f.known, i, value)
}

// others returns the others' figures in order, nil if they are too few.
func (f *figures) others(k int) []float64 {
	if f.at[k].samples == 0 || len(f.known) <= leastOthers {
		return nil
	}
	i, _ := slices.BinarySearch(f.known, f.at[k].value)
	return slices.Delete(slices.Clone(f.known), i, i+1)
}

// away returns how far worker k is from the others' median, false if it or they are unknown.
func (f *figures) away(k int) (float64, bool) {
	others := f.others(k)
	if others == nil {
		return 0, false
	}
	return f.at[k].value - median(others), true
}

// spread returns the others' robust standard deviation.
func (f *figures) spread(k int) float64 {
	others := f.others(k)
	middle := median(others)
	for i := range others {
		others[i] = math.Abs(others[i] - middle)
	}
	slices.Sort(others)
	return madScale * median(others)
}

// median is that of sorted values, which must be some.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[n/2] + sorted[(n-1)/2]) / 2
}

// paces returns by how much each worker of a kind is slower than the kind's median at its loads, as a logarithm: the median
// over its times.
func paces(all []Observed, kind []int, of func(o *Observed) *Pace, now time.Time) figures {
	times, curve := make([][]paceTime, len(kind)), [paceLoads]float64{}
	var medians [paceLoads][]float64 // of each worker that has the load
	for k, i := range kind {
		times[k] = of(&all[i]).counting(now)
		slices.SortFunc(times[k], func(a, b paceTime) int { return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(a.log, b.log)) })
		for from := 0; from < len(times[k]); {
			load, to := times[k][from].load, from
			for to < len(times[k]) && times[k][to].load == load {
				to++
			}
			medians[load] = append(medians[load], (times[k][(from+to)/2].log+times[k][(from+to-1)/2].log)/2)
			from = to
		}
	}
	for load, m := range medians {
		if curve[load] = math.NaN(); len(m) >= 2 {
			slices.Sort(m)
			curve[load] = median(m)
		}
	}
	out, slower := figures{at: make([]figure, len(kind))}, make([]float64, 0, paceKeeps)
	for k := range kind {
		slower = slower[:0]
		for _, t := range times[k] {
			if expected := expect(&curve, t.load); !math.IsNaN(expected) {
				slower = append(slower, t.log-expected)
			}
		}
		if slices.Sort(slower); len(slower) >= leastForgotten {
			out.set(k, median(slower), len(slower))
		}
	}
	return out
}

// expect returns a kind's time at a load. Between known loads it is their line; above all of them it grows as the load
// does, and below it is the least one's, which are the most that it can be.
func expect(curve *[paceLoads]float64, load int) float64 {
	below, above := load, load
	for below >= 0 && math.IsNaN(curve[below]) {
		below--
	}
	for above < paceLoads && math.IsNaN(curve[above]) {
		above++
	}
	switch {
	case below < 0 && above == paceLoads:
		return math.NaN()
	case below < 0:
		return curve[above]
	case above == paceLoads:
		return curve[below] + float64(load-below)*math.Ln2/2
	case below == above:
		return curve[load]
	}
	return curve[below] + (curve[above]-curve[below])*float64(load-below)/float64(above-below)
}
