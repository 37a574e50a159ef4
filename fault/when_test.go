package fault

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
)

// A rule with a time hits calls from then on, until its time is over.
func TestRulesHaveTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hit []string
		calls := Inject(streamer(), &Scenario{
			Rules: []Rule{
				{Fault: "refuse", Probability: 1, At: 10 * time.Second, For: 5 * time.Second},
				{Fault: "truncate", Probability: 1, At: 20 * time.Second},
			},
			OnHit: func(_ http1.Leg, fault string) { hit = append(hit, fault) },
		})
		for range 6 { // at 0 s, 5 s, …, 25 s
			if s, err := calls.Call(t.Context(), decodeLeg(1)); err == nil {
				_ = s.Close()
			} else {
				hit[len(hit)-1] += " failed"
			}
			<-time.After(5 * time.Second)
		}
		assert.Equal(t, []string{"refuse failed", "truncate", "truncate"}, hit)
	})
}

// An answer that drips is whole, and takes its bytes' time.
func TestSlowDrip(t *testing.T) {
	for rate, want := range map[int]time.Duration{0: time.Second / 1024, 10: time.Second / 10, 5000: time.Second / 5000} {
		synctest.Test(t, func(t *testing.T) {
			s, err := always(streamer(), Rule{Fault: "slow_drip", Rate: rate}).Call(t.Context(), decodeLeg(1))
			require.NoError(t, err)
			defer s.Close()
			start := time.Now()
			got, err := io.ReadAll(s)
			assert.NoError(t, err)
			assert.Equal(t, streamed, string(got))
			assert.InDelta(t, want*time.Duration(len(streamed)), time.Since(start), float64(time.Millisecond))
		})
	}
}
