package fault

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/tandem-pd/tandem/internal/upstream"
)

// Fault is one way for a call to a worker to go wrong. It acts on one call, in
// the transport's place.
type Fault interface {
	// Call makes the call through next, or does not, and lets it go wrong. It
	// keeps the promises of [upstream.Transport]: its error is an
	// *upstream.Error, ctx ends it, and closing its stream closes next's. rng
	// is the call's own: the same seed and call draw the same numbers.
	Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, rng *rand.Rand) (upstream.Stream, error)
}

// Registered is a fault that a scenario can name.
type Registered struct {
	// Name is what the scenario calls it, and its file: fault_NAME.go.
	Name string
	// Help is one line about what happens.
	Help string
	// Kinds are the calls that it can befall; nil means all.
	Kinds []upstream.Kind
	// Uses names the rule's fields that shape it, beyond those that choose its
	// calls. Others are refused in a scenario: they would change nothing.
	Uses []string
	// New makes the fault of a rule. Its error names the field at fault.
	New func(r Rule) (Fault, error)
}

// befalls reports whether the fault can happen to calls of that kind.
func (r Registered) befalls(kind upstream.Kind) bool {
	return r.Kinds == nil || slices.Contains(r.Kinds, kind)
}

// faults by name.
var faults = map[string]Registered{}

// Register makes a fault known under its name. It is called from init
// functions, and panics when the name is taken.
func Register(r Registered) {
	if _, taken := faults[r.Name]; taken {
		panic("fault: " + r.Name + " is registered twice")
	}
	faults[r.Name] = r
}

// Faults lists the registered faults by name.
func Faults() []Registered {
	list := make([]Registered, 0, len(faults))
	for _, r := range faults {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Registered) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// FieldError says which field of a rule is wrong.
type FieldError struct {
	// Field is the field's key in a scenario file.
	Field string
	Err   error
}

// Error names the field and what is wrong with it.
func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

// Unwrap gives what is wrong.
func (e *FieldError) Unwrap() error { return e.Err }

// fieldErrorf makes a FieldError.
func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{Field: field, Err: fmt.Errorf(format, args...)}
}
