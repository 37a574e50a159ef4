package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name: "delay",
		Help: "the call reaches the worker only after delay",
		Uses: []string{"delay"},
		New: func(r Rule) (Fault, error) {
			if r.Delay == 0 {
				return nil, &FieldError{Field: "delay", Err: errors.New("is missing: how long the call is held up, as 250ms")}
			}
			return delay{by: r.Delay}, nil
		},
	})
}

// delay holds a call up, as a congested network does.
type delay struct{ by time.Duration }

func (f delay) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, _ *rand.Rand) (upstream.Stream, error) {
	if err := pause(ctx, f.by); err != nil {
		return nil, broken(leg, upstream.OpHead, err)
	}
	return next.Call(ctx, leg)
}
