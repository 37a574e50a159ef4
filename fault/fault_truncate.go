package fault

import (
	"context"
	"io"
	"math/rand/v2"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name: "truncate",
		Help: "the answer ends cleanly after after_events events, or within its first bytes where it is no stream",
		Uses: []string{"after_events"},
		New:  func(r Rule) (Fault, error) { return truncate{after: r.AfterEvents}, nil },
	})
}

// truncate ends an answer early and well-formed, as a proxy between does when
// it loses the worker.
type truncate struct{ after int }

func (f truncate) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, _ *rand.Rand) (upstream.Stream, error) {
	s, err := next.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	return &cut{Stream: s, meter: newMeter(s, f.after), after: func([]byte) (int, error) { return 0, io.EOF }}, nil
}
