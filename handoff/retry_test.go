package handoff

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
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
