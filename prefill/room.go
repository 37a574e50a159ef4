// Package prefill is the prefill leg: it calls the worker and returns its answer, whose hand-off metadata a connector
// reads. It also measures how fast workers compute prompts and derives how long a prompt may take ([Limits]).
package prefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Config is the prefill leg's settings.
type Config struct {
	// Timeout is how long a worker may take to answer. Automatic is the greater of 30 s and five times the
	// prediction: the uncached tokens booked on the worker over its observed speed; see [Limits]. The flag is decode's
	// first-token-timeout.
	Timeout time.Duration `default:"0s" range:"0s.."`
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error { return setting.Check(&c) }

// Room is the prefill leg of every model. It is safe for concurrent use.
type Room struct {
	cfg       Config
	roster    *pools.Roster
	transport http1.Transport
	limits    *Limits
	fits      *speed.Fits
	runs      http1.Pool[run, *run]
	ended     sync.Map // by worker, when its latest prefill succeeded: a time.Time
}

// New returns a room.
func New(cfg Config, roster *pools.Roster, transport http1.Transport) *Room {
	return &Room{cfg: cfg, roster: roster, transport: transport, limits: NewLimits(), fits: speed.NewFits(speed.Prompt())}
}

func (r *Room) pool(model string) *pools.Pool { return r.roster.Snapshot(model, pools.Prefill) }

// maxAnswerBytes bounds a prefill answer: one token of text and the hand-off metadata, a few bytes per block.
const maxAnswerBytes = 8 << 20

// run is the pooled state of one call.
type run struct {
	http1.Lifetime
	read []byte // of the answer
}

// keptBytes is the longest answer whose memory is kept.
const keptBytes = 16 << 10

// Reset implements [http1.Pooled].
func (in *run) Reset() {
	if cap(in.read) > keptBytes {
		in.read = nil
	}
}

// answer reads a whole answer, or one byte more than allowed.
func (in *run) answer(from io.Reader) ([]byte, error) {
	body := in.read[:0]
	for len(body) <= maxAnswerBytes {
		body = slices.Grow(body, 1<<10)
		n, err := from.Read(body[len(body):cap(body)])
		if body = body[:len(body)+n]; errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	if in.read = body; len(body) > keptBytes {
		in.read = nil
		return body, nil
	}
	return slices.Clone(body), nil
}

// Answer is a prefill worker's answer, parsed.
type Answer struct {
	Body []byte
	Info openai.ChunkInfo
}

// ReadAnswer parses a worker's answer.
func ReadAnswer(body []byte) Answer { return Answer{body, openai.Inspect(body)} }

// Run calls the leased worker and reads its whole answer. The caller keeps the lease.
func (r *Room) Run(ctx context.Context, lease *router.Lease, leg http1.Leg) (answer Answer, _ *fault.Error) {
	worker := lease.Worker
	booked := lease.BacklogTokens
	limit := r.timeout(worker, booked)
	in := r.runs.Take()
	in.Begin(ctx)
	in.Limit(limit, fault.ErrTimeout)
	ctx = in
	defer in.Close()
	defer func() {
		if r.cfg.Timeout == 0 && errors.Is(context.Cause(ctx), fault.ErrTimeout) {
			r.limits.Exceeded(worker.Model, r.pool(worker.Model).IDs(), limit)
		}
	}()
	start := time.Now()
	stream, err := r.transport.Call(ctx, leg)
	if err != nil {
		return answer, r.failed(worker, err)
	}
	defer http1.End(stream)
	body, err := in.answer(stream)
	refused := fault.Classify(nil, stream.Status()) != fault.None
	if err == nil && refused && ctx.Err() != nil {
		err = context.Cause(ctx) // the client left: the engine's answer is not its failure
	}
	switch {
	case err != nil:
		return answer, r.failed(worker, err)
	case len(body) > maxAnswerBytes:
		return answer, fault.New(pools.Prefill, worker.ID, fmt.Errorf("%w: over %d bytes", fault.ErrGarbled, maxAnswerBytes), 0)
	case refused:
		return answer, fault.Reported(pools.Prefill, worker.ID, nil, stream.Status(), body)
	}
	answer = ReadAnswer(body)
	if answer.Info.Error {
		return answer, fault.Reported(pools.Prefill, worker.ID, fault.ErrEngine, openai.ReadEngineError(body).Status, body)
	}
	took := time.Since(start)
	r.ended.Store(worker.ID, start.Add(took))
	r.limits.Observe(worker.Model, worker.ID, booked, took)
	Learn(r.fits, lease, answer.Info.CachedTokens, took, start.Add(took))
	return answer, nil
}

// Learn records in fits how long the leased worker took for a prompt that it had no other prompt ahead of. cached is what
// the engine reports, below 0 for unknown.
func Learn(fits *speed.Fits, lease *router.Lease, cached int, took time.Duration, now time.Time) {
	w, expected := lease.Worker, lease.Overlap*lease.Worker.BlockSize
	if lease.BacklogTokens != lease.PrefillTokens {
		return
	}
	if cached < 0 {
		cached = expected
	}
	fits.Observe(KindOf(w), w.ID, w.Incarnation, lease.PrefillTokens+expected-cached, cached, took, now)
}

// KindOf returns the kind of workers that are as fast as w.
func KindOf(w *pools.Worker) speed.Kind {
	return speed.Kind{Model: w.Model, Engine: w.Engine, Device: w.DeviceClass, BatchedTokens: w.MaxNumBatchedTokens}
}

// Forecast is a [router.Forecast] of prefill workers.
func (r *Room) Forecast(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
	return r.fits.Predict(KindOf(w), w.ID, booked, uncached, cached)
}

// Occupied is as Forecast for how long the prompt keeps the worker from the next one.
func (r *Room) Occupied(w *pools.Worker, _, uncached, cached int) (time.Duration, bool) {
	return r.fits.Occupied(KindOf(w), w.ID, uncached, cached)
}

// Off returns the share by which the worker's latest prompts were off their forecast, 0 while unknown.
func (r *Room) Off(worker string) float64 { return r.fits.Off(worker) }

// Rate is the worker's observed prefill speed in tokens a second, 0 while unknown.
func (r *Room) Rate(worker string) float64 { return r.limits.PerSecond(worker) }

// Latest returns when the worker's latest prefill succeeded, zero for none.
func (r *Room) Latest(worker string) time.Time {
	at, _ := r.ended.Load(worker)
	t, _ := at.(time.Time)
	return t
}

// Forget drops the observations of workers that left the roster.
func (r *Room) Forget() {
	gone := func(worker string) bool { _, known := r.roster.Lookup(worker); return !known }
	r.fits.Forget(gone)
	r.ended.Range(func(worker, _ any) bool {
		if gone(worker.(string)) {
			r.ended.Delete(worker)
		}
		return true
	})
	r.limits.Forget(
		gone,
		func(model string) bool { return len(r.pool(model).Members) == 0 })
}

// timeout returns the limit of a prefill of so many tokens by worker.
func (r *Room) timeout(worker *pools.Worker, bookedTokens int) time.Duration {
	if r.cfg.Timeout > 0 {
		return r.cfg.Timeout
	}
	return r.limits.For(worker.Model, worker.ID, r.pool(worker.Model).IDs(), bookedTokens)
}

// failed returns the failure of a call, and reports a worker that refused the connection as down.
func (r *Room) failed(worker *pools.Worker, err error) *fault.Error {
	var up *http1.Error
	if errors.As(err, &up) {
		err = up
	}
	e := fault.New(pools.Prefill, worker.ID, err, 0)
	if e.Class == fault.Refused {
		r.roster.ReportDown(worker.ID, worker.Incarnation)
	}
	return e
}
