package prefill

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// engine is a Transport that answers after a while, or never.
type engine struct {
	after  time.Duration // negative: never
	status int
	body   string
	err    error
}

func (e *engine) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	if e.err != nil {
		return nil, e.err
	}
	var answered <-chan time.Time
	if e.after >= 0 {
		answered = time.After(e.after)
	}
	select {
	case <-answered:
		return &answer{Reader: strings.NewReader(e.body), status: e.status}, nil
	case <-ctx.Done():
		return nil, &http1.Error{Worker: leg.Worker, Op: http1.OpHead, Err: context.Cause(ctx)}
	}
}

type answer struct {
	io.Reader
	status int
}

func (a *answer) Status() int         { return a.status }
func (a *answer) ContentType() string { return "application/json" }
func (a *answer) Close() error        { return nil }

func room(t *testing.T, cfg Config, e *engine, isl int) (*Room, *router.Lease) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	require.NoError(t, roster.Put(pools.Worker{ID: "p1", Incarnation: "i", Model: "m", Role: pools.Prefill, Engine: "vllm",
		Address: "http://h:1", BlockSize: 16}))
	set, err := router.NewSet(map[pools.Role]router.Config{pools.Prefill: router.DefaultConfig().For(pools.Prefill)}, log)
	require.NoError(t, err)
	r := New(cfg, roster, e)
	lease, err := set.For("m", pools.Prefill).Reserve(r.pool("m"), router.Request{ID: "x", ISL: isl}, time.Now())
	require.NoError(t, err)
	return r, lease
}

func TestRunNamesWhatCame(t *testing.T) {
	const transfer = `{"object":"error","message":"Error in kv cache transfer for context requests","code":400}`
	for _, c := range []struct {
		name   string
		engine engine
		want   fault.Class
	}{
		{"answered", engine{status: 200, body: `{}`}, fault.None},
		{"refused", engine{err: &http1.Error{Op: http1.OpDial, Err: errors.New("refused")}}, fault.Refused},
		{"rejected", engine{status: 400, body: `{"message":"too long"}`}, fault.Rejected},
		{"broke", engine{status: 500}, fault.EngineError},
		{"broke, and calls that a 400", engine{status: 400, body: transfer}, fault.EngineError},
		{"rejected in an answer", engine{status: 200, body: `{"error":{"message":"too long","code":400}}`}, fault.Rejected},
		{"broke in an answer", engine{status: 200, body: `{"error":{"message":"no","code":500}}`}, fault.EngineError},
		{"too large to be an answer", engine{status: 200, body: strings.Repeat("x", maxAnswerBytes+1)}, fault.Garbled},
		{"the client left", engine{after: -1}, fault.ClientGone},
	} {
		r, lease := room(t, Config{}, &c.engine, 100)
		ctx, leave := context.WithCancelCause(t.Context())
		if c.want == fault.ClientGone {
			leave(fault.ErrClientGone)
		}
		answer, failed := r.Run(ctx, lease, http1.Leg{Worker: "p1"})
		assert.True(t, (failed == nil) == (c.want == fault.None) && (failed == nil || failed.Class == c.want), "%s: %v", c.name, failed)
		assert.True(t, failed != nil || string(answer.Body) == c.engine.body, "%s: %q", c.name, answer.Body)
		assert.Equal(t, (c.want != fault.Refused), r.pool("m").Members[0].Eligible(time.Now()), "%s: eligible", c.name)
		leave(nil)
	}
}

// A worker that never answers is left at the limit, to the millisecond: the
// configured one, 30 s while its speed is unknown, five times the prediction
// after that.
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		rate float64 // tokens a second seen before, 0 none
		isl  int
		want time.Duration
	}{
		{"configured", Config{Timeout: 7 * time.Second}, 0, 100, 7 * time.Second},
		{"unknown speed", Config{}, 0, 1_000_000, 30 * time.Second},
		{"short prompt", Config{}, 20_000, 1_000, 30 * time.Second},
		{"long prompt", Config{}, 20_000, 200_000, 50 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, lease := room(t, c.cfg, &engine{after: -1}, c.isl)
			if c.rate > 0 {
				r.limits.Observe("m", lease.Worker.ID, int(c.rate), time.Second)
			}
			start := time.Now()
			_, failed := r.Run(t.Context(), lease, http1.Leg{Worker: "p1"})
			assert.True(t, failed != nil && failed.Class == fault.Timeout && time.Since(start) == c.want,
				"%s: %v after %v, want a timeout after %v", c.name, failed, time.Since(start), c.want)
		})
	}
}

// A fleet that is only asked for prompts which take longer than the first limit finds
// that out: each that ran into it gives the next one twice as long, until an answer
// shows the speed, which then holds for workers that have not answered yet as well.
func TestAFleetOfLongPromptsLearnsItsSpeed(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration
		cfg   Config
		tries []time.Duration // how long each may take; the last one is answered
		next  time.Duration   // the limit of another worker behind it
	}{
		{"two minutes", 2*time.Minute - time.Second, Config{}, []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute},
			595 * time.Second},
		{"in time", 20 * time.Second, Config{}, []time.Duration{30 * time.Second}, 100 * time.Second},
		{"a limit that was set stays", time.Minute, Config{Timeout: 10 * time.Second}, []time.Duration{10 * time.Second, 10 * time.Second,
			10 * time.Second, 0}, 10 * time.Second},
		{"never answered", -1, Config{}, []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute,
			8 * time.Minute, 0}, 8 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, lease := room(t, c.cfg, &engine{after: c.takes, status: 200, body: "{}"}, 100_000)
				for i, limit := range c.tries {
					if limit == 0 {
						break // it was never answered
					}
					start := time.Now()
					_, failed := r.Run(t.Context(), lease, http1.Leg{Worker: "p1"})
					answered := i == len(c.tries)-1
					require.True(t, answered == (failed == nil) && (answered || failed.Class == fault.Timeout && time.Since(start) == limit),
						"try %d ended after %v with %v, want a limit of %v", i+1, time.Since(start), failed, limit)
					if answered {
						assert.InDelta(t, 100_000/c.takes.Seconds(), r.Rate("p1"), .1, "tokens a second")
					}
				}
				assert.Equal(t, c.next, r.timeout(&pools.Worker{ID: "p2", Model: "m"}, 100_000), "another worker may take")
			})
		})
	}
}
