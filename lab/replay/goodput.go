package replay

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits are when a request counts as good: it was answered within all of them. 0 is none.
type Limits struct {
	TTFT time.Duration `yaml:"ttft"`
	ITL  time.Duration `yaml:"itl"` // the request's mean: (E2E − TTFT)/(tokens − 1)
	TBT  time.Duration `yaml:"tbt"` // the mean of the longest tenth of its gaps
}

// set reports whether there is a limit.
func (l Limits) set() bool { return l != Limits{} }

// Words are the limits that are set.
func (l Limits) Words() (all []string) {
	for _, w := range []struct {
		name  string
		limit time.Duration
	}{{"a TTFT", l.TTFT}, {"an ITL", l.ITL}, {"a TBT", l.TBT}} {
		if w.limit > 0 {
			all = append(all, fmt.Sprintf("%s of at most %v", w.name, w.limit))
		}
	}
	return all
}

// Kept counts requests by the limits that they met.
type Kept struct {
	Requests int `json:"requests"`
	Answered int `json:"answered"`
	// TTFT and ITL are answers within the limit of the one, and within those of ITL and TBT; Good are within all.
	TTFT int `json:"ttft"`
	ITL  int `json:"itl"`
	Good int `json:"good"`
}

// Add counts a request; longest is its TBT. An answer without a token is within
// no limit; a request that was cancelled with its run does not count.
func (k *Kept) Add(l *Limits, s *Sample, longest time.Duration) {
	if s.Outcome == Cancelled {
		return
	}
	k.Requests++
	if s.Outcome != Answered {
		return
	}
	k.Answered++
	if s.TTFT <= 0 {
		return
	}
	within := func(got, limit time.Duration) bool { return limit == 0 || got <= limit }
	early := within(time.Duration(s.TTFT), l.TTFT)
	fluent := within(time.Duration(s.ITL), l.ITL) && within(longest, l.TBT)
	for _, c := range []struct {
		met bool
		n   *int
	}{{early, &k.TTFT}, {fluent, &k.ITL}, {early && fluent, &k.Good}} {
		if c.met {
			*c.n++
		}
	}
}

// KeptOf counts a run's requests.
func KeptOf(samples []Sample, l Limits) (k Kept) {
	for i := range samples {
		k.Add(&l, &samples[i], 0)
	}
	return k
}

// leastForShare is how many requests there are at least where a share of them is written as a percentage.
const leastForShare = 100

// Sentence reports the counts against the limits in words.
func (k Kept) Sentence(l Limits) string {
	limits := l.Words()
	switch {
	case k.Requests == 0:
		return "Goodput: no request was due."
	case len(limits) == 0:
		return "Goodput: no limits are set."
	case k.Answered == 0:
		return fmt.Sprintf("Goodput: 0 of %d requests, since none was answered.", k.Requests)
	}
	share := ""
	if k.Requests >= leastForShare {
		share = " (" + Percent(float64(k.Good)/float64(k.Requests)) + ")"
	}
	text := fmt.Sprintf("Goodput: %d of %d requests%s came with %s.", k.Good, k.Requests, share, strings.Join(limits, " and "))
	if l.TTFT > 0 && (l.ITL > 0 || l.TBT > 0) {
		text += fmt.Sprintf(" Of the %d answered, %d met the limit of TTFT and %d that of ITL.", k.Answered, k.TTFT, k.ITL)
	}
	return text
}

// Percent formats a share to a tenth of a percent. What is not all or nothing is not written as such.
func Percent(share float64) string {
	switch {
	case share > 0 && share < .0005:
		return "under 0.1 %"
	case share > .9995 && share < 1:
		return "over 99.9 %"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// enough is the goodput, in percent, that a service is usually held to.
var enough = []Limit{{Name: "90 %", At: 90}}

// Parts of a run over which goodput is plotted: so many at most, and so many requests in each at least, in the mean.
const (
	mostParts     = 40
	leastRequests = 10
)

// goodputOverTime plots the share of good requests among those that were due in each part of the run.
func (r *Report) goodputOverTime() *Plot {
	p := &Plot{
		Title: "Goodput over time", Help: "share of the requests due in each part of the run that were answered within the limits",
		X: clock, Y: Axis{Name: "goodput", Unit: "%"}, Limits: enough, Steps: true,
	}
	var due []*Sample
	for i := range r.Samples {
		if s := &r.Samples[i]; s.Outcome != Cancelled {
			due = append(due, s)
		}
	}
	if len(due) == 0 || !r.Limits.set() {
		return p
	}
	last := slices.MaxFunc(due, func(a, b *Sample) int { return int(a.Scheduled - b.Scheduled) }).Scheduled
	parts := min(mostParts, max(1, len(due)/leastRequests))
	all, good, refused := make([]int, parts), make([]int, parts), make([]int, parts)
	for _, s := range due {
		part := min(parts-1, int(float64(s.Scheduled)/float64(last+1)*float64(parts)))
		if all[part]++; KeptOf([]Sample{*s}, r.Limits).Good > 0 {
			good[part]++
		}
		if s.Refused() {
			refused[part]++
		}
	}
	at := func(part int) float64 { return time.Duration(last).Seconds() * float64(part) / float64(parts) }
	curve := func(name string, of []int) Series {
		c := Series{Name: name}
		for part := range parts {
			if all[part] > 0 {
				c.X, c.Y = append(c.X, at(part)), append(c.Y, 100*float64(of[part])/float64(all[part]))
			}
		}
		c.X, c.Y = append(c.X, at(parts)), append(c.Y, c.Y[len(c.Y)-1])
		return c
	}
	p.Series = []Series{curve("goodput", good)}
	if r.Summary.Refused > 0 {
		p.Series = append(p.Series, curve("refused", refused))
	}
	return p
}
