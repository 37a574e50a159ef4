// Package prefill is the prefill leg: it holds the KV routers that choose a
// worker for its cached prefix, makes the call and brings back what the worker
// answered, hand-off metadata included. What that metadata says is the
// connector's to read.
package prefill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Config is what the prefill leg can be told.
type Config struct {
	// Timeout is how long a worker may take to answer (--prefill-timeout). 0
	// means automatic: the greater of 30 s and five times the prediction,
	// which is the uncached tokens booked on the worker over its observed
	// prefill rate. A worker that has not answered yet goes by the slowest of its
	// pool; while none of the pool has, the limit is 30 s, and twice as long, up
	// to 8 min, after each prompt that took longer.
	Timeout time.Duration
}

// Validate names the setting that is wrong.
func (c Config) Validate() error {
	if c.Timeout < 0 {
		return fmt.Errorf("prefill-timeout: %v is negative", c.Timeout)
	}
	return nil
}

// Room is the prefill leg of every model. It is safe for concurrent use.
type Room struct {
	cfg       Config
	roster    *pools.Roster
	routers   *router.Set
	transport upstream.Transport

	mu       sync.Mutex
	rates    map[string]*rate         // by worker id
	patience map[string]time.Duration // by model: the limit while no worker of it has answered
}

// New makes the room. routers gives each model's prefill pool its own router.
func New(cfg Config, roster *pools.Roster, routers *router.Set, transport upstream.Transport) *Room {
	return &Room{cfg: cfg, roster: roster, routers: routers, transport: transport, rates: map[string]*rate{}, patience: map[string]time.Duration{}}
}

// Pool is the model's prefill pool as it is now.
func (r *Room) Pool(model string) *pools.Pool { return r.roster.Snapshot(model, pools.Prefill) }

// Router is the model's prefill router.
func (r *Room) Router(model string) *router.Router { return r.routers.For(model, pools.Prefill) }

// Answer is what a prefill worker said.
type Answer struct {
	// Body is the whole JSON answer, and Said what it holds.
	Body []byte
	Said openai.ChunkInfo
	// Took is the time from the call to the whole answer.
	Took time.Duration
}

// maxAnswerBytes bounds a prefill answer: one token of text and the hand-off
// metadata, whose block ids are a few bytes a block.
const maxAnswerBytes = 8 << 20

// Run calls the worker that lease holds and reads its whole answer. On failure
// the error says what went wrong by name; the lease stays the caller's.
func (r *Room) Run(ctx context.Context, lease *router.Lease, leg upstream.Leg) (Answer, *fault.Error) {
	worker := lease.Worker
	booked := lease.BacklogTokens
	limit := r.timeout(worker, booked)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.ErrTimeout)
	defer cancel()
	defer func() {
		if errors.Is(context.Cause(ctx), fault.ErrTimeout) {
			r.exceeded(worker.Model, limit)
		}
	}()
	start := time.Now()
	stream, err := r.transport.Call(ctx, leg)
	if err != nil {
		return Answer{}, r.failed(worker, err)
	}
	defer stream.Close()
	body, err := io.ReadAll(io.LimitReader(stream, maxAnswerBytes+1))
	refused := fault.Classify(nil, stream.Status()) != fault.None
	if err == nil && refused && ctx.Err() != nil {
		err = context.Cause(ctx) // what an engine says to a client that left is not its failure
	}
	switch {
	case err != nil:
		return Answer{}, r.failed(worker, err)
	case len(body) > maxAnswerBytes:
		return Answer{}, fault.New(fault.Prefill, worker.ID, fmt.Errorf("%w: over %d bytes", fault.ErrGarbled, maxAnswerBytes), 0)
	case refused:
		return Answer{}, reported(worker, nil, stream.Status(), body)
	}
	said := openai.Inspect(body)
	if said.Error {
		return Answer{}, reported(worker, fault.ErrEngine, openai.ReadEngineError(body).Status, body)
	}
	took := time.Since(start)
	r.observe(worker, booked, took)
	return Answer{Body: body, Said: said, Took: took}, nil
}

// Rate is the worker's observed prefill speed in tokens a second, 0 while unknown.
func (r *Room) Rate(worker string) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.rates[worker]; known != nil {
		return known.perSecond()
	}
	return 0
}

// Forget drops what is known of workers that are no longer in the roster.
func (r *Room) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.rates {
		if _, known := r.roster.Lookup(id); !known {
			delete(r.rates, id)
		}
	}
	for model := range r.patience {
		if len(r.Pool(model).Members) == 0 {
			delete(r.patience, model)
		}
	}
}

// timeout is how long worker may take to so many tokens.
func (r *Room) timeout(worker *pools.Worker, bookedTokens int) time.Duration {
	if r.cfg.Timeout > 0 {
		return r.cfg.Timeout
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.rates[worker.ID]; known != nil && known.perSecond() > 0 {
		return known.timeoutFor(bookedTokens)
	}
	if slowest := r.slowest(worker.Model); slowest != nil {
		return slowest.timeoutFor(bookedTokens)
	}
	return max(minTimeout, r.patience[worker.Model])
}

// slowest is the lowest rate of the model's workers, nil while none is known. The
// caller holds mu.
func (r *Room) slowest(model string) (slowest *rate) {
	for _, m := range r.Pool(model).Members {
		if known := r.rates[m.Worker.ID]; known != nil && known.perSecond() > 0 && (slowest == nil || known.perSecond() < slowest.perSecond()) {
			slowest = known
		}
	}
	return slowest
}

// exceeded takes in that a prompt took longer than the limit: where no rate is known,
// the limit may be what keeps it from becoming known.
func (r *Room) exceeded(model string, limit time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cfg.Timeout == 0 && r.slowest(model) == nil {
		r.patience[model] = max(r.patience[model], min(2*limit, maxPatience))
	}
}

func (r *Room) observe(worker *pools.Worker, bookedTokens int, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.rates[worker.ID]
	if known == nil {
		known = &rate{}
		r.rates[worker.ID] = known
	}
	if known.observe(bookedTokens, took); known.perSecond() > 0 {
		delete(r.patience, worker.Model)
	}
}

// reported names a failure that the engine reported itself.
func reported(worker *pools.Worker, err error, status int, body []byte) *fault.Error {
	if openai.ReadEngineError(body).Died {
		err = fault.ErrEngineDied
	}
	e := fault.New(fault.Prefill, worker.ID, err, status)
	e.Detail = body
	return e
}

// failed names a failed call and takes a worker that refused the connection
// out of the choice.
func (r *Room) failed(worker *pools.Worker, err error) *fault.Error {
	var up *upstream.Error
	if errors.As(err, &up) {
		err = up
	}
	e := fault.New(fault.Prefill, worker.ID, err, 0)
	if e.Class == fault.Refused {
		r.roster.ReportDown(worker.ID, worker.Incarnation)
	}
	return e
}
