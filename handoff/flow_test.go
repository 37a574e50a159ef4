package handoff

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// What one worker's death meets waits for its place in the retry budget: requests that it had, and the first refusal of those
// that were on their way to it. An outage's do not: a second refusal, a second death, a worker's own error.
func TestWhoWaitsForARetry(t *testing.T) {
	h := newHouse(t, true, oneOfEach)
	for _, c := range []struct {
		name  string
		class fault.Class
		tried []string
		dead  []string
		waits bool
	}{
		{"refused", fault.Refused, nil, nil, true},
		{"refused again", fault.Refused, []string{"d"}, nil, false},
		{"died", fault.Reset, nil, []string{"d"}, true},
		{"died, then refused by another", fault.Refused, []string{"d"}, []string{"d"}, true},
		{"a second died", fault.Reset, []string{"d"}, []string{"d", "e"}, false},
		{"its own error", fault.EngineError, nil, nil, false},
	} {
		r := h.ask(c.tried...)
		r.Dead = c.dead
		failed := &fault.Error{Class: c.class, Leg: pools.Decode, Worker: "f"}
		assert.Equal(t, c.waits, h.waitsForRetry(r, failed, OtherDecode), c.name)
	}
}

// Only a client that can be served later gets a Retry-After.
func TestAnswersToComeBackAfter(t *testing.T) {
	later := 0
	for class := range messages {
		e := answerTo(&fault.Error{Class: class, Leg: pools.Decode})
		assert.Equal(t, e.Status == http.StatusServiceUnavailable, e.RetryAfter > 0, "%v: %+v", class, e)
		later += int(e.RetryAfter)
	}
	assert.NotZero(t, later, "no class is one to come back after")
	for _, err := range []error{placement.ErrNoDecode, placement.ErrNoPrefill, queue.ErrClosed, router.ErrTaints} {
		e := requestOf(Call{Request: new(openai.Request)}, "").refusal(err)
		assert.True(t, e.Status == http.StatusServiceUnavailable && e.RetryAfter > 0, "%v: %+v", err, e)
	}
}
