package fault

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/pools"
)

// A worker whose every answer breaks after its first token fails in a row, whether
// its calls run one after the other or at once. What is alive when one fails counts
// for the worker until it fails itself.
func TestFailuresAfterASignOfLifeAreARow(t *testing.T) {
	for together, want := range map[int]int{1: 3, 2: 4, 8: 3} {
		b, broken := NewBreakers(BreakerConfig{}), 0
		for b.State("d1", pools.Decode) == Closed && broken < 24 {
			var calls []func(error)
			for range together {
				calls = append(calls, begin(t, b))
				calls[len(calls)-1](None)
			}
			for _, done := range calls {
				if b.State("d1", pools.Decode) == Closed {
					broken++
				}
				done(Reset)
				done(ClientGone) // the permit is given back
			}
		}
		assert.Equal(t, want, broken, "%d at once: broken answers until it opens", together)
	}
}

// The row is what a look at everything that happened would find, and holds no more
// than the calls that are live.
func TestRowTwin(t *testing.T) {
	type event struct{ call int } // a sign of that call, or a failure where it is below 0
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var row run
		var history []event
		live := map[int]*sign{}
		for i := range 200 {
			calls := make([]int, 0, len(live))
			for c := range live {
				calls = append(calls, c)
			}
			slices.Sort(calls)
			switch what := rng.IntN(4); {
			case what == 0 || len(calls) == 0:
				live[i] = new(sign)
				row.add(live[i])
				history = append(history, event{i})
			case what == 1:
				row.fail()
				history = append(history, event{-1})
			default:
				c := calls[rng.IntN(len(calls))]
				s := live[c]
				delete(live, c)
				if what == 2 {
					row.stand(s)
					break
				}
				row.takeBack(s)
				row.fail()
				history = append(slices.DeleteFunc(history, func(e event) bool { return e.call == c }), event{-1})
			}
			want := 0
			for _, e := range slices.Backward(history) {
				if e.call >= 0 {
					break
				}
				want++
			}
			require.Equal(t, want, row.length(), "step %d in a row: %v", i, history)
			n := 0
			for s := row.last; s != nil; s = s.before {
				n++
			}
			require.LessOrEqual(t, n, len(live)+2, "step %d signs for %d live calls", i, len(live))
		}
	}
}
