package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name: "wrong_status",
		Help: "an HTTP error, status or 500, in the worker's place; the worker sees nothing",
		Uses: []string{"status"},
		New: func(r Rule) (Fault, error) {
			if r.Status == 0 {
				r.Status = http.StatusInternalServerError
			}
			return wrongStatus{status: r.Status}, nil
		},
	})
}

// wrongStatus answers with an error in the shape of vLLM's.
type wrongStatus struct{ status int }

func (f wrongStatus) Call(context.Context, upstream.Leg, upstream.Transport, *rand.Rand) (upstream.Stream, error) {
	return newCanned(f.status, "application/json",
		fmt.Sprintf(`{"error":{"message":"injected status %d","type":"InjectedError","param":null,"code":%[1]d}}`, f.status)), nil
}
