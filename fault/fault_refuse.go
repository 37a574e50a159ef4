package fault

import (
	"syscall"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	register(Registered{
		Name: "refuse",
		Help: "nothing listens at the worker's address: no connection, and the worker sees nothing",
		call: func(c *injected) (upstream.Stream, error) {
			return nil, c.broken(upstream.OpDial, syscall.ECONNREFUSED)
		},
	})
}
