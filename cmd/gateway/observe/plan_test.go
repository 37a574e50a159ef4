package observe

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/planner"
)

// A plan is made of what has arrived, what waits and each worker's answers, which a restart counts again from 0.
func TestPlanInputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, roster := compared(t)
		p, d := worker("p", pools.Prefill), worker("d", pools.Decode)
		for _, w := range []pools.Worker{p, d} {
			require.NoError(t, roster.Put(w))
		}
		began := time.Now()
		f.observer.Queued(&handoff.Record{Call: handoff.Call{Request: &openai.Request{Model: "m"}}}, 300)
		for range 3 {
			call(f.observer, &d, 0, 2, time.Second, time.Second)
		}
		in := f.Inputs("m", queue.Stats{Waiting: 2, WaitingTokens: 50, WaitingUncachedTokens: 40})
		require.True(t, len(in.Prefill) == 1 && len(in.Decode) == 1, "%+v", in)
		assert.Equal(t, []any{300., 2, int64(50), int64(40)}, []any{in.Arrived, in.Waiting, in.WaitingTokens, in.WaitingUncached})
		assert.Equal(t, []any{"d", 3, began}, []any{in.Decode[0].ID, in.Decode[0].Answers, in.Decode[0].Since})
		assert.Equal(t, planner.ModelNotFit, planner.NewCore(planner.Config{}).Step(time.Now(), in).Pools[0].Reason)
		d.Incarnation = "2"
		require.NoError(t, roster.Put(d))
		call(f.observer, &d, 0, 2, time.Second, time.Second)
		assert.Equal(t, 1, f.Inputs("m", queue.Stats{}).Decode[0].Answers)
	})
}
