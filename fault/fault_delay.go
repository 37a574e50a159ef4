package fault

import "github.com/tandem-pd/tandem/internal/http1"

func init() {
	register(Registered{
		Name: "delay",
		Help: "the call reaches the worker only after delay",
		uses: []string{"delay"},
		call: func(c *injected) (http1.Stream, error) {
			if err := pause(c.ctx, c.rule.Delay); err != nil {
				return nil, c.broken(http1.OpHead, err)
			}
			return c.pass()
		},
	})
}
