package fault

import "github.com/tandem-pd/tandem/internal/upstream"

func init() {
	register(Registered{
		Name: "delay",
		Help: "the call reaches the worker only after delay",
		uses: []string{"delay"},
		call: func(c *injected) (upstream.Stream, error) {
			if err := pause(c.ctx, c.rule.Delay); err != nil {
				return nil, c.broken(upstream.OpHead, err)
			}
			return c.pass()
		},
	})
}
