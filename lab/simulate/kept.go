package simulate

import (
	"fmt"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// Kept counts requests by the limits that they met.
type Kept struct {
	Requests, Answered int
	// TTFT and ITL are answers within the limit of the one, and within those of ITL and TBT; Good are within all.
	TTFT, ITL, Good int
}

// add counts a request; longest is its TBT. An answer without a token is within
// no limit; of a request that was cancelled with its run nothing is known.
func (k *Kept) add(slo *SLO, s *replay.Sample, longest time.Duration) {
	if s.Outcome == replay.Cancelled {
		return
	}
	k.Requests++
	if s.Outcome != replay.Answered {
		return
	}
	k.Answered++
	if s.TTFT <= 0 {
		return
	}
	within := func(got, limit time.Duration) bool { return limit == 0 || got <= limit }
	early := within(time.Duration(s.TTFT), slo.TTFT)
	fluent := within(time.Duration(s.ITL), slo.ITL) && within(longest, slo.TBT)
	for _, c := range []struct {
		met bool
		n   *int
	}{{early, &k.TTFT}, {fluent, &k.ITL}, {early && fluent, &k.Good}} {
		if c.met {
			*c.n++
		}
	}
}

// KeptOf counts an observed run's requests.
func KeptOf(samples []replay.Sample, slo SLO) (k Kept) {
	for i := range samples {
		k.add(&slo, &samples[i], 0)
	}
	return k
}

// leastForShare is how many requests there are at least where a share of them is written as a percentage.
const leastForShare = 100

// Sentence reports the counts against the limits in words.
func (k Kept) Sentence(slo SLO) string {
	limits := slo.limits()
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
		share = " (" + percent(float64(k.Good)/float64(k.Requests)) + ")"
	}
	text := fmt.Sprintf("Goodput: %d of %d requests%s came with %s.", k.Good, k.Requests, share, strings.Join(limits, " and "))
	if slo.TTFT > 0 && (slo.ITL > 0 || slo.TBT > 0) {
		text += fmt.Sprintf(" Of the %d answered, %d met the limit of TTFT and %d that of ITL.", k.Answered, k.TTFT, k.ITL)
	}
	return text
}

// limits are the limits that are set, in words.
func (slo SLO) limits() (all []string) {
	for _, l := range []struct {
		name  string
		limit time.Duration
	}{{"a TTFT", slo.TTFT}, {"an ITL", slo.ITL}, {"a TBT", slo.TBT}} {
		if l.limit > 0 {
			all = append(all, fmt.Sprintf("%s of at most %v", l.name, l.limit))
		}
	}
	return all
}
