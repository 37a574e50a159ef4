package fault

import (
	"context"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tandem-pd/tandem/internal/upstream"
)

// Inject wraps a transport so that calls go wrong as the scenario says; no
// code above it asks whether they do. Which call is hit follows from the
// scenario's seed, the call's kind and its RequestID, which holds the attempt:
// never from the clock or from the order of calls. At most one rule hits a
// call, the first in the scenario's order. A nil scenario, or one without
// rules, gives t itself.
//
// The scenario must not change afterwards. Inject panics when a rule is one
// that [Scenario.Validate] refuses.
func Inject(t upstream.Transport, s *Scenario) upstream.Transport {
	if s == nil || len(s.Rules) == 0 {
		return t
	}
	in := &injector{next: t, seed: s.Seed, onHit: s.OnHit}
	for i, r := range s.Rules {
		f, err := r.fault()
		if err != nil {
			panic("fault: Inject: an invalid scenario: " + err.Error())
		}
		in.rules = append(in.rules, armed{Rule: r, as: faults[r.Fault], index: uint64(i), fault: f})
	}
	return in
}

// injector is the transport that Inject makes.
type injector struct {
	next  upstream.Transport
	seed  uint64
	rules []armed
	onHit func(leg upstream.Leg, fault string)
}

// armed is a rule with its fault made.
type armed struct {
	Rule
	as    Registered
	index uint64
	fault Fault
}

// Call lets the first rule that hits the call have it.
func (in *injector) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	for i := range in.rules {
		r := &in.rules[i]
		if !r.matches(leg) || !r.as.befalls(leg.Kind) {
			continue
		}
		rng := in.rng(r.index, leg)
		if rng.Float64() >= r.Probability {
			continue
		}
		if in.onHit != nil {
			in.onHit(leg, r.Fault)
		}
		return r.fault.Call(ctx, leg, in.next, rng)
	}
	return in.next.Call(ctx, leg)
}

// rng is the random source of one rule and one call.
func (in *injector) rng(rule uint64, leg upstream.Leg) *rand.Rand {
	h := fnv.New64a()
	_, _ = io.WriteString(h, string(leg.Kind)) // never fails
	_, _ = h.Write([]byte{0})
	_, _ = io.WriteString(h, leg.RequestID)
	const golden = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio, odd: no two rules share a stream
	return rand.New(rand.NewPCG(in.seed^(rule*golden), h.Sum64()))
}

// pause waits for d, or gives the cause of ctx's end.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
