package fault

import (
	"syscall"

	"github.com/tandem-pd/tandem/internal/http1"
)

func init() {
	register(Registered{
		Name: "refuse",
		Help: "nothing listens at the worker's address: no connection, and the worker sees nothing",
		call: func(c *injected) (http1.Stream, error) {
			return nil, c.broken(http1.OpDial, syscall.ECONNREFUSED)
		},
	})
}
