package fault

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// Scenario is the rules by which calls get faults. Its file is YAML:
//
//	seed: 7
//	rules:
//	  - fault: stall          # a registered fault's name
//	    at: 10s               # from this long after the start on; from the start where absent
//	    for: 5s               # for this long; for good where absent
//	    probability: 0.1      # of each call that the rule matches; 1 where absent
//	    leg: decode           # prefill, decode or release; every call where absent
//	    worker: "decode-*"    # a glob over worker ids; every worker where absent
//	    where: "*/decode-*"   # both at once, in their place: a glob over leg/worker
//	    after_events: 3
//	    delay: 2s
//	    rate: 100             # bytes a second, for faults that slow an answer
type Scenario struct {
	// Seed decides, with a call's id, which calls are hit.
	Seed uint64 `yaml:"seed"`
	// Rules are tried in order; the first that hits a call has it.
	Rules []Rule `yaml:"rules"`
	// OnHit, unless nil, is called for every call that a rule hits, before the fault
	// happens, on the call's goroutine. It must not block.
	OnHit func(leg http1.Leg, fault string) `yaml:"-"`
}

// Rule is one line of a scenario: a fault, the calls that it may hit, and the fault's parameters.
type Rule struct {
	Fault       string        `yaml:"fault"`        // the name of a registered fault
	Probability float64       `yaml:"probability"`  // share of matching calls that are hit, in (0, 1]
	Leg         string        `yaml:"leg"`          // the kind of call; empty: every kind that the fault can hit
	Worker      string        `yaml:"worker"`       // a glob over worker ids, as path.Match has it; empty: every worker
	Where       string        `yaml:"where"`        // in place of Leg and Worker: a glob over leg/worker, as decode/decode-*
	At          time.Duration `yaml:"at"`           // how long after Inject the rule begins, at most maxDelay
	For         time.Duration `yaml:"for"`          // how long it lasts then, at most maxDelay; 0 is for good
	Rate        int           `yaml:"rate"`         // bytes of an answer that pass in a second; 0 is the fault's own default
	AfterEvents int           `yaml:"after_events"` // events of a stream that pass first
	AfterBytes  int           `yaml:"after_bytes"`  // bytes of an answer that pass first
	Delay       time.Duration `yaml:"delay"`        // how long a delay or stall lasts, at most maxDelay
	Status      int           `yaml:"status"`       // the HTTP status answered, from 300 to 599
}

// Bounds of a scenario.
const (
	maxRules = 1000      // each matching rule costs a hash on every call
	maxDelay = time.Hour // of one fault that ends
	maxCount = 1 << 30   // of after_events, after_bytes and rate
)

// ParseScenario reads a scenario file's bytes; file names it in errors. It is strict: it refuses what
// [setting.Document.Decode] refuses, unknown faults, values out of range, fields that mean nothing to their fault, and a
// scenario without rules, which would test nothing. Its error joins all mistakes as [*setting.Error]s.
func ParseScenario(file string, data []byte) (*Scenario, error) {
	doc, err := setting.Parse(file, data)
	if err != nil {
		return nil, err
	}
	s := new(Scenario)
	if err := doc.Decode(s); err != nil {
		return nil, err
	}
	switch n := len(s.Rules); {
	case n == 0:
		return nil, doc.Errorf("rules", "is empty: a scenario has a list of rules")
	case n > maxRules:
		return nil, doc.Errorf("rules", "has %d rules, the limit is %d", n, maxRules)
	}
	var problems []error
	for i, node := range setting.Child(doc.Root, "rules").Content {
		if wrong, ok := errors.AsType[*setting.Error](s.Rules[i].read(node)); ok {
			problems = append(problems, doc.Errorf(fmt.Sprintf("rules[%d].%s", i, wrong.Name), "%w", wrong.Err))
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return s, nil
}

// read checks a rule of a file, whose zero values may have been left out. The error is a *setting.Error.
func (r *Rule) read(node *yaml.Node) error {
	given := func(key string) bool { return setting.Child(node, key) != nil }
	switch {
	case given("leg") && r.Leg == "":
		return setting.Errorf("leg", "is empty: leave the key out for all")
	case given("worker") && r.Worker == "":
		return setting.Errorf("worker", "is empty: leave the key out for all")
	case given("where") && r.Where == "":
		return setting.Errorf("where", "is empty: leave the key out for all")
	case given("for") && r.For == 0:
		return setting.Errorf("for", "is 0: leave the key out for a rule without end")
	case given("rate") && r.Rate == 0:
		return setting.Errorf("rate", "is 0, not from 1 to %d", maxCount)
	case given("status") && r.Status == 0:
		return setting.Errorf("status", "is 0, not from 300 to 599")
	}
	if !given("probability") {
		r.Probability = 1
	}
	_, err := r.check()
	return err
}

// check checks the rule and returns its fault. The error is a *setting.Error.
func (r *Rule) check() (of Registered, err error) {
	of, ok := faults[r.Fault]
	_, glob := path.Match(r.Worker, "")
	_, globWhere := path.Match(r.Where, "")
	switch {
	case r.Fault == "":
		return of, setting.Errorf("fault", "is missing: one of %s", strings.Join(faultNames(), ", "))
	case !ok:
		return of, setting.Errorf("fault", "%w", setting.Unknown("fault", r.Fault, faultNames()))
	case math.IsNaN(r.Probability) || r.Probability <= 0 || r.Probability > 1:
		return of, setting.Errorf("probability", "is %v, not above 0 and at most 1", r.Probability)
	case r.Leg != "" && !slices.Contains(purposes, r.Leg):
		return of, setting.Errorf("leg", "is %s, not prefill, decode or release", setting.Quote(r.Leg))
	case r.Leg != "" && !of.befalls(r.Leg):
		return of, setting.Errorf("leg", "%s cannot befall %s, only %s", r.Fault, r.Leg, join(of.legs))
	case r.AfterEvents < 0 || r.AfterEvents > maxCount:
		return of, setting.Errorf("after_events", "is %d, not from 0 to %d", r.AfterEvents, maxCount)
	case r.AfterBytes < 0 || r.AfterBytes > maxCount:
		return of, setting.Errorf("after_bytes", "is %d, not from 0 to %d", r.AfterBytes, maxCount)
	case r.Delay < 0 || r.Delay > maxDelay:
		return of, setting.Errorf("delay", "is %v, not from 0 to %v", r.Delay, maxDelay)
	case r.Status != 0 && (r.Status < 300 || r.Status > 599):
		return of, setting.Errorf("status", "is %d, not from 300 to 599", r.Status)
	case r.Rate < 0 || r.Rate > maxCount:
		return of, setting.Errorf("rate", "is %d, not from 1 to %d", r.Rate, maxCount)
	case r.At < 0 || r.At > maxDelay:
		return of, setting.Errorf("at", "is %v, not from 0 to %v", r.At, maxDelay)
	case r.For < 0 || r.For > maxDelay:
		return of, setting.Errorf("for", "is %v, not from 0 to %v", r.For, maxDelay)
	case glob != nil:
		return of, setting.Errorf("worker", "%s is no glob: %w", setting.Quote(r.Worker), glob)
	case globWhere != nil:
		return of, setting.Errorf("where", "%s is no glob: %w", setting.Quote(r.Where), globWhere)
	case r.Where != "" && r.Leg+r.Worker != "":
		return of, setting.Errorf("where", "takes the place of leg and worker: give it or them")
	case r.Where != "" && strings.Count(r.Where, "/") != 1:
		return of, setting.Errorf("where", "is %s, not LEG/WORKER, as decode/decode-*", setting.Quote(r.Where))
	}
	for _, shape := range []struct {
		field string
		set   bool
	}{
		{"after_events", r.AfterEvents != 0}, {"after_bytes", r.AfterBytes != 0}, {"delay", r.Delay != 0}, {"status", r.Status != 0},
		{"rate", r.Rate != 0},
	} {
		if shape.set && !slices.Contains(of.uses, shape.field) {
			return of, setting.Errorf(shape.field, "means nothing to %s", r.Fault)
		}
	}
	if r.Fault == "delay" && r.Delay == 0 {
		return of, setting.Errorf("delay", "is missing: how long the call is held up, as 250ms")
	}
	return of, nil
}

// matches reports whether the rule is about that call, made so long after Inject.
func (r *Rule) matches(leg http1.Leg, after time.Duration) bool {
	if after < r.At || r.For > 0 && after >= r.At+r.For {
		return false
	}
	if r.Where != "" {
		ok, _ := path.Match(r.Where, leg.Purpose+"/"+leg.Worker) // the pattern was checked
		return ok
	}
	if r.Leg != "" && r.Leg != leg.Purpose {
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

// Release is the purpose of a call that frees KV which no decode will fetch.
const Release = "release"

// purposes are those that a call can have.
var purposes = []string{string(pools.Prefill), string(pools.Decode), Release}

// join lists legs for a sentence.
func join(legs []pools.Role) string {
	var names []string
	for _, l := range legs {
		names = append(names, string(l))
	}
	return strings.Join(names, " or ")
}
