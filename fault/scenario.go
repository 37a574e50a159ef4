package fault

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/upstream"
)

// Scenario says which faults befall which calls. Its file is YAML:
//
//	seed: 7
//	rules:
//	  - fault: stall          # a registered fault's name
//	    probability: 0.1      # of each call that the rule matches; 1 where absent
//	    leg: decode           # prefill, decode or release; every call where absent
//	    worker: "decode-*"    # a glob over worker ids; every worker where absent
//	    after_events: 3
//	    delay: 2s
type Scenario struct {
	// Seed decides, with a call's id, which calls are hit.
	Seed uint64
	// Rules are tried in order; the first that hits a call has it.
	Rules []Rule
	// OnHit is told of every call that a rule hits, before the fault happens;
	// nil for nobody. It is called from the call's goroutine and must not wait.
	OnHit func(leg upstream.Leg, fault string)
}

// Rule is one line of a scenario: a fault, the calls it may befall, and what
// shapes it.
type Rule struct {
	// Fault is the name of a registered fault.
	Fault string
	// Probability is the share of matching calls that are hit, in (0, 1].
	Probability float64
	// Leg limits the rule to one kind of call; empty means every kind that
	// the fault can befall.
	Leg upstream.Kind
	// Worker limits it to the workers whose id matches this glob, as path.Match
	// has it; empty means every worker.
	Worker string
	// AfterEvents is how many events of a stream pass first.
	AfterEvents int
	// AfterBytes is how many bytes of an answer pass first.
	AfterBytes int
	// Delay is how long a delay or stall lasts, at most MaxDelay.
	Delay time.Duration
	// Status is the HTTP status answered, from 300 to 599.
	Status int
}

// Bounds of a scenario.
const (
	// MaxRules is how many rules a scenario may have: each matching one costs
	// a hash on every call.
	MaxRules = 1000
	// MaxDelay is how long one fault may last where it does not last for good.
	MaxDelay = time.Hour
	// maxCount bounds after_events and after_bytes.
	maxCount = 1 << 30
)

// Validate checks every rule and joins what is wrong.
func (s *Scenario) Validate() error {
	var problems []error
	if len(s.Rules) > MaxRules {
		problems = append(problems, fieldErrorf("rules", "%d of them, the limit is %d", len(s.Rules), MaxRules))
	}
	for i, r := range s.Rules {
		if _, err := r.fault(); err != nil {
			problems = append(problems, fmt.Errorf("rules[%d]: %w", i, err))
		}
	}
	return errors.Join(problems...)
}

// fault checks the rule and makes its fault. The error is a *FieldError.
func (r *Rule) fault() (Fault, error) {
	of, ok := faults[r.Fault]
	switch {
	case r.Fault == "":
		return nil, fieldErrorf("fault", "is missing: one of %s", strings.Join(faultNames(), ", "))
	case !ok:
		return nil, fieldErrorf("fault", "there is no fault %q; the nearest is %s", clip(r.Fault), nearest(r.Fault, faultNames()))
	case math.IsNaN(r.Probability) || r.Probability <= 0 || r.Probability > 1:
		return nil, fieldErrorf("probability", "is %v, not above 0 and at most 1", r.Probability)
	case r.Leg != "" && !slices.Contains(upstream.Kinds(), r.Leg):
		return nil, fieldErrorf("leg", "is %q, not prefill, decode or release", clip(string(r.Leg)))
	case r.Leg != "" && !of.befalls(r.Leg):
		return nil, fieldErrorf("leg", "%s cannot befall %s, only %s", r.Fault, r.Leg, join(of.Kinds))
	case r.AfterEvents < 0 || r.AfterEvents > maxCount:
		return nil, fieldErrorf("after_events", "is %d, not from 0 to %d", r.AfterEvents, maxCount)
	case r.AfterBytes < 0 || r.AfterBytes > maxCount:
		return nil, fieldErrorf("after_bytes", "is %d, not from 0 to %d", r.AfterBytes, maxCount)
	case r.Delay < 0 || r.Delay > MaxDelay:
		return nil, fieldErrorf("delay", "is %v, not from 0 to %v", r.Delay, MaxDelay)
	case r.Status != 0 && (r.Status < 300 || r.Status > 599):
		return nil, fieldErrorf("status", "is %d, not from 300 to 599", r.Status)
	}
	if _, err := path.Match(r.Worker, ""); err != nil {
		return nil, fieldErrorf("worker", "%q is no glob: %w", clip(r.Worker), err)
	}
	for _, shape := range []struct {
		field string
		set   bool
	}{
		{"after_events", r.AfterEvents != 0}, {"after_bytes", r.AfterBytes != 0}, {"delay", r.Delay != 0}, {"status", r.Status != 0},
	} {
		if shape.set && !slices.Contains(of.Uses, shape.field) {
			return nil, fieldErrorf(shape.field, "means nothing to %s", r.Fault)
		}
	}
	return of.New(*r)
}

// matches reports whether the rule is about that call.
func (r *Rule) matches(leg upstream.Leg) bool {
	if r.Leg != "" && r.Leg != leg.Kind {
		return false
	}
	if r.Worker == "" {
		return true
	}
	ok, _ := path.Match(r.Worker, leg.Worker) // the pattern was checked
	return ok
}

// faultNames lists the registered faults' names in order.
func faultNames() []string {
	var names []string
	for _, f := range Faults() {
		names = append(names, f.Name)
	}
	return names
}

// join lists kinds for a sentence.
func join(kinds []upstream.Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, string(k))
	}
	return strings.Join(names, " or ")
}
