package handoff

import (
	"net/http"
	"testing"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// A client that can be served later is told when to come back, and no other.
func TestAnswersToComeBackAfter(t *testing.T) {
	later := 0
	for class := range messages {
		e := answerTo(&fault.Error{Class: class, Leg: pools.Decode})
		if (e.RetryAfter > 0) != (e.Status == http.StatusServiceUnavailable) {
			t.Errorf("%v: status %d, retry after %v", class, e.Status, e.RetryAfter)
		}
		if e.RetryAfter > 0 {
			later++
		}
	}
	if later == 0 {
		t.Error("no class is one to come back after")
	}
	for _, err := range []error{placement.ErrNoDecode, placement.ErrNoPrefill, queue.ErrClosed, router.ErrTaints} {
		if e := requestOf(Call{Request: new(openai.Request)}, "").refusal(err); e.Status != http.StatusServiceUnavailable || e.RetryAfter <= 0 {
			t.Errorf("%v: status %d, retry after %v", err, e.Status, e.RetryAfter)
		}
	}
}
