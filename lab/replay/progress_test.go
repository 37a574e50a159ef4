package replay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// While requests are due the schedule determines the time left; then the answers do.
func TestStateOfALoad(t *testing.T) {
	for _, c := range []struct {
		progress Progress
		taken    time.Duration
		line     string
	}{
		{Progress{}, 2 * time.Second, " 0 %, 2s: 0 of 0 sent, 0 in flight, 0 answered, 0 failed"},
		{Progress{Total: 100, Sent: 60, InFlight: 10, Answered: 49, Failed: 1}, 40 * time.Second,
			"50 %, 40s, about 20s left: 60 of 100 sent, 10 in flight, 49 answered, 1 failed"},
		{Progress{Total: 100, Sent: 100, InFlight: 20, Answered: 80}, 80 * time.Second,
			"80 %, 1m20s, about 20s left: 100 of 100 sent, 20 in flight, 80 answered, 0 failed"},
	} {
		assert.Equal(t, c.line, state(c.progress, time.Minute, c.taken).Line(c.taken))
	}
}
