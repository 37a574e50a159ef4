package fault

import (
	"context"
	"math/rand/v2"
	"syscall"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name: "refuse",
		Help: "nothing listens at the worker's address: no connection, and the worker sees nothing",
		New:  func(Rule) (Fault, error) { return refuse{}, nil },
	})
}

// refuse fails as a dead process's address does.
type refuse struct{}

func (refuse) Call(_ context.Context, leg upstream.Leg, _ upstream.Transport, _ *rand.Rand) (upstream.Stream, error) {
	return nil, broken(leg, upstream.OpDial, syscall.ECONNREFUSED)
}
