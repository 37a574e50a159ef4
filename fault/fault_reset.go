package fault

import (
	"syscall"

	"github.com/tandem-pd/tandem/internal/http1"
)

func init() {
	register(Registered{
		Name: "reset",
		Help: "the connection breaks after after_bytes bytes of the answer; at 0, once the worker has answered and before anything of it arrives",
		uses: []string{"after_bytes"},
		answer: func(c *injected, s http1.Stream) (http1.Stream, error) {
			if c.rule.AfterBytes == 0 {
				_ = s.Close() // the failure to report is the reset
				return nil, c.broken(http1.OpHead, syscall.ECONNRESET)
			}
			return &cut{Stream: s, meter: meter{left: c.rule.AfterBytes}, after: func([]byte) (int, error) {
				return 0, c.broken(http1.OpBody, syscall.ECONNRESET)
			}}, nil
		},
	})
}
