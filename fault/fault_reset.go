package fault

import (
	"context"
	"math/rand/v2"
	"syscall"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name: "reset",
		Help: "the connection breaks after after_bytes bytes of the answer; at 0, once the worker has answered and before anything of it arrives",
		Uses: []string{"after_bytes"},
		New:  func(r Rule) (Fault, error) { return reset{after: r.AfterBytes}, nil },
	})
}

// reset breaks a connection that the worker has begun to answer on: a process
// that dies, a cable that is pulled.
type reset struct{ after int }

func (f reset) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, _ *rand.Rand) (upstream.Stream, error) {
	s, err := next.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	if f.after == 0 {
		_ = s.Close() // the failure to report is the reset
		return nil, broken(leg, upstream.OpHead, syscall.ECONNRESET)
	}
	return &cut{Stream: s, meter: meter{left: f.after}, after: func([]byte) (int, error) {
		return 0, broken(leg, upstream.OpBody, syscall.ECONNRESET)
	}}, nil
}
