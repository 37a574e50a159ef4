package fault

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/tandem-pd/tandem/internal/http1"
)

func init() {
	register(Registered{
		Name: "wrong_status",
		Help: "an HTTP error, status or 500, in the worker's place; the worker sees nothing",
		uses: []string{"status"},
		call: func(c *injected) (http1.Stream, error) { // in the shape of vLLM's errors
			status := cmp.Or(c.rule.Status, http.StatusInternalServerError)
			return newCanned(status, "application/json",
				fmt.Sprintf(`{"error":{"message":"injected status %d","type":"InjectedError","param":null,"code":%[1]d}}`, status)), nil
		},
	})
}
