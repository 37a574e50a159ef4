package fault

import (
	"io"

	"github.com/tandem-pd/tandem/internal/http1"
)

func init() {
	register(Registered{
		Name: "truncate",
		Help: "the answer ends cleanly after after_events events, or within its first bytes where it is no stream",
		uses: []string{"after_events"},
		answer: func(c *injected, s http1.Stream) (http1.Stream, error) {
			return &cut{Stream: s, meter: newMeter(s, c.rule.AfterEvents), after: func([]byte) (int, error) { return 0, io.EOF }}, nil
		},
	})
}
