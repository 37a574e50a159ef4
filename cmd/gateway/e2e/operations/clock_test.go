package operations

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
)

// jump is the moment at as a process reads it whose system's clock was set by d, whole seconds, since it started: the
// wall clock differs, and the monotonic one, by which spans of time are measured, does not. at must be of time.Now.
func jump(at time.Time, d time.Duration) time.Time {
	const fraction = 30 // the bits below the seconds in the first word of a time.Time with a monotonic reading
	*(*uint64)(unsafe.Pointer(&at)) += uint64(d/time.Second) << fraction
	return at
}

// The system's clock is set an hour forward, or back: nothing that waits for a span of time ends early, or late.
func TestClockJumps(t *testing.T) {
	for _, d := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(d.String(), func(t *testing.T) {
			began := time.Now()
			after := func(span time.Duration) time.Time { return jump(began.Add(span), d) }
			if is := after(time.Second); is.Sub(began) != time.Second || is.Unix()-began.Unix()-int64(d.Seconds()) > 2 ||
				is.Unix()-began.Unix()-int64(d.Seconds()) < 0 {
				t.Fatalf("the jump of %v from %v is none: %v", d, began, is)
			}

			roster := pools.NewCore(pools.Config{DownFor: 5 * time.Second})
			for _, id := range []string{"v", "w"} { // the last worker of a pool is down for a moment only
				w := &pools.Worker{ID: id, Incarnation: "1", Model: "m", Role: pools.Both, Engine: "sim",
					Address: "http://127.0.0.1:1", BlockSize: 16}
				if _, err := roster.Put("", w, began); err != nil {
					t.Fatal(err)
				}
			}
			roster.Down("w", "1", began)
			assert.True(t, !roster.Advance(after(4*time.Second)) && roster.Advance(after(6*time.Second)),
				"the time for which a worker is down")
			if _, err := roster.Resync("", nil, 5*time.Second, began); err != nil || roster.Advance(after(4*time.Second)) ||
				!roster.Advance(after(6*time.Second)) {
				t.Error("the grace of a worker that is missing")
			}

			kv := prefill.KV{Expires: began.Add(30 * time.Second)}
			assert.True(t, kv.Bindable(after(20*time.Second)) && !kv.Bindable(after(26*time.Second)), "the lease of staged KV")

			cfg := setting.Default[queue.Config]()
			cfg.Timeout = 5 * time.Second
			waiting, err := queue.NewCore(cfg, began, func(*queue.Ticket[int], error) {})
			require.NoError(t, err)
			require.NoError(t, waiting.Push(&queue.Ticket[int]{}, began))
			waiting.Expire(after(4 * time.Second))
			early := waiting.Len()
			if waiting.Expire(after(6 * time.Second)); early != 1 || waiting.Len() != 0 {
				t.Error("the time in the queue")
			}

			blocks := index.New(index.Config{})
			predicted := index.NewPredictor(blocks, index.PredictorConfig{TTL: 5 * time.Second, MaxBlocks: 100, PruneRatio: 1})
			predicted.Insert(blocks.Owner("w", 0), []uint64{1, 2}, began)
			assert.True(t, predicted.Expire(after(4*time.Second)) == 0 && predicted.Expire(after(6*time.Second)) == 2,
				"the time for which a prompt is predicted")
		})
	}
}
