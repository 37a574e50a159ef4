package simulate

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAgendaWhileItRuns uses an agenda as a run does: thousands of arrivals are
// entered beforehand, and what happens enters more. Events come by their time,
// and those of one time in the order in which they were entered.
func TestAgendaWhileItRuns(t *testing.T) {
	const seed, arrivals = 3, 5000
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var a agenda
	added, taken := 0, 0
	add := func(at int64, what occasion, left uint32) {
		a.add(event{at: at, what: what, turn: left})
		added++
	}
	for i := range int64(arrivals) {
		add(1000*i, arrive, 0)
	}
	var last event
	for !a.empty() {
		e := a.take()
		taken++
		require.True(t, e.at >= last.at && (e.at != last.at || e.seq >= last.seq),
			"event %d of %d comes after event %d of %d", e.seq, e.at, last.seq, last.at)
		last = e
		switch {
		case e.what == arrive:
			for range rng.IntN(3) {
				add(e.at+rng.Int64N(5000), step, rng.Uint32N(20))
			}
		case e.turn > 0:
			add(e.at+rng.Int64N(3)*rng.Int64N(1500), step, e.turn-1)
		}
	}
	assert.Equal(t, added, taken, "events were entered and N came")
}
