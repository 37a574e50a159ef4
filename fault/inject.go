package fault

import (
	"context"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
)

// Inject wraps a transport so that calls fail by the scenario, transparently to the code above. Whether a call is hit
// depends on the scenario's seed, the call's kind and its RequestID, which holds the attempt. The order of calls never
// counts, and the clock only for rules with a time. At most one rule hits a call, the first in order. For a nil or
// empty scenario, Inject returns t itself.
//
// The scenario must not change afterwards. Inject panics on an invalid rule, which ParseScenario never returns.
func Inject(t http1.Transport, s *Scenario) http1.Transport {
	if s == nil || len(s.Rules) == 0 {
		return t
	}
	in := &injector{next: t, Scenario: s, start: time.Now()}
	for i := range s.Rules {
		as, err := s.Rules[i].check()
		if err != nil {
			panic("fault: Inject: an invalid scenario: " + err.Error())
		}
		in.faults = append(in.faults, as)
	}
	return in
}

type injector struct {
	*Scenario
	next   http1.Transport
	faults []Registered // by rule
	start  time.Time    // what At counts from
}

// Call makes the call through the first rule that hits it.
func (in *injector) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	after := time.Since(in.start)
	for i := range in.Rules {
		r, as := &in.Rules[i], &in.faults[i]
		if !r.matches(leg, after) || !as.befalls(leg.Purpose) {
			continue
		}
		rng := in.rng(uint64(i), leg)
		if rng.Float64() >= r.Probability {
			continue
		}
		if in.OnHit != nil {
			in.OnHit(leg, r.Fault)
		}
		return as.on(&injected{ctx, leg, in.next, r, rng})
	}
	return in.next.Call(ctx, leg)
}

func (in *injector) rng(rule uint64, leg http1.Leg) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, leg.Purpose) // never fails
	_, _ = h.Write([]byte{0})
	_, _ = io.WriteString(h, leg.RequestID)
	const golden = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio, odd: no two rules share a stream
	return rand.New(rand.NewPCG(in.Seed^(rule*golden), h.Sum64()))
}

// pause waits for d, for good where that is 0, or gives the cause of ctx's end.
func pause(ctx context.Context, d time.Duration) error {
	var over <-chan time.Time
	if d > 0 {
		over = time.After(d)
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
