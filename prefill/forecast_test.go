package prefill

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// A prefill worker's answers predict its prompts from the first one on. Calls that found other prompts ahead of theirs are
// not fitted.
func TestForecastLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &pools.Worker{ID: "p", Incarnation: "i", Model: "m", Role: pools.Prefill, Engine: "vllm", BlockSize: 16}
		roster := pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler))
		e := &engine{status: 200, body: `{"choices":[{"text":"a"}],"usage":{"prompt_tokens":1000,"prompt_tokens_details":{"cached_tokens":0}}}`}
		r := New(Config{}, roster, e)
		call := func(tokens, ahead int, took time.Duration) {
			t.Helper()
			e.after = took
			_, failed := r.Run(t.Context(), &router.Lease{Choice: router.Choice{Worker: w}, PrefillTokens: tokens, BacklogTokens: tokens + ahead},
				http1.Leg{})
			require.Nil(t, failed)
		}
		_, ok := r.Forecast(w, 0, 1000, 0)
		assert.False(t, ok, "something is predicted before any answer")
		call(1000, 0, time.Second)
		d, ok := r.Forecast(w, 1000, 1000, 0)
		assert.True(t, ok && (d-2*time.Second).Abs() <= 100*time.Millisecond, "by one answer %v, %v; want about 2 s", d, ok)
		// 100 ms a call and 1 s a thousand tokens; those with prompts ahead take longer.
		for i := range 120 {
			tokens := 100 + 50*(i%40)
			took := 100*time.Millisecond + time.Duration(tokens)*time.Millisecond
			call(tokens, 0, took)
			call(tokens, 4000, took+4*time.Second)
		}
		for _, c := range []struct {
			booked, uncached int
			want             time.Duration
		}{{0, 1000, 1100 * time.Millisecond}, {0, 100, 200 * time.Millisecond}, {1000, 100, 1300 * time.Millisecond}} {
			d, ok := r.Forecast(w, c.booked, c.uncached, 0)
			assert.True(t, ok && (d-c.want).Abs() <= c.want/50,
				"%d tokens behind %d: %v, %v; want about %v", c.uncached, c.booked, d, ok, c.want)
		}
	})
}
