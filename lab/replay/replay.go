package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Config is how a workload is replayed.
type Config struct {
	// Speed divides the workload's times: its arrivals and its delays.
	Speed float64
	// MaxInFlight bounds what one process takes on. A request that is due when as many are in flight is not sent, and
	// counted as such: to wait instead would close the loop.
	MaxInFlight int
	// Timeout bounds each request, from its sending.
	Timeout time.Duration
}

// Validate returns the mistakes in the settings.
func (c Config) Validate() error {
	switch {
	case !(c.Speed > 0) || math.IsInf(c.Speed, 0):
		return fmt.Errorf("a speed of %v", c.Speed)
	case c.MaxInFlight < 1:
		return fmt.Errorf("at most %d requests in flight", c.MaxInFlight)
	case c.Timeout <= 0:
		return fmt.Errorf("a limit of %v for each request", c.Timeout)
	}
	return nil
}

// Replay is one run of a workload against an endpoint.
type Replay struct {
	cfg      Config
	workload *Workload
	endpoint *Endpoint

	requests sync.WaitGroup // a goroutine a chain
	inFlight atomic.Int64
	sent     atomic.Int64
	answered atomic.Int64
	failed   atomic.Int64
	tokens   atomic.Int64
}

// Progress is the progress of a run.
type Progress struct {
	Total, Sent, InFlight, Answered, Failed int
	OutputTokens                            int64
}

// New returns a replay that has not begun.
func New(cfg Config, w *Workload, e *Endpoint) (*Replay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return &Replay{cfg: cfg, workload: w, endpoint: e}, nil
}

// Progress may be called at any time.
func (r *Replay) Progress() Progress {
	return Progress{
		Total: len(r.workload.Requests), Sent: int(r.sent.Load()), InFlight: int(r.inFlight.Load()),
		Answered: int(r.answered.Load()), Failed: int(r.failed.Load()), OutputTokens: r.tokens.Load(),
	}
}

// ready is a chain whose first body is made.
type ready struct {
	chain chain
	body  []byte
}

// lookahead is how many bodies are made before their time, so that making them does not make a burst late.
const lookahead = 64

// Run replays the workload and returns the report, once every goroutine it started has ended. When ctx ends nothing
// more is sent, and what is in flight is cancelled. The samples are those of the requests that were due by then.
func (r *Replay) Run(ctx context.Context) []Sample {
	chains := r.workload.chains()
	queue := make(chan ready, lookahead)
	go func() {
		defer close(queue)
		for _, c := range chains {
			select {
			case queue <- ready{c, r.endpoint.body(c[0])}:
			case <-ctx.Done():
				return
			}
		}
	}()
	ended := make(chan *Sample, lookahead)
	start := time.Now()
	go func() {
		defer close(ended)
		r.dispatch(ctx, start, queue, ended)
		r.requests.Wait()
	}()
	samples := make([]Sample, 0, len(r.workload.Requests))
	for s := range ended {
		samples = append(samples, *s)
	}
	for range queue { // its maker has ended before the last sample was taken, or ends now
	}
	return samples
}

// dispatch starts every chain at its time.
func (r *Replay) dispatch(ctx context.Context, start time.Time, queue <-chan ready, ended chan<- *Sample) {
	for next := range queue {
		due := start.Add(r.scaled(next.chain[0].At))
		if !wait(ctx, due) {
			return
		}
		if r.inFlight.Load() >= int64(r.cfg.MaxInFlight) {
			for _, req := range next.chain {
				s := newSample(req, due.Sub(start))
				s.Outcome = NotSent
				r.failed.Add(1)
				ended <- s
			}
			continue
		}
		r.inFlight.Add(1)
		r.requests.Go(func() { r.run(ctx, start, due, next, ended) })
	}
}

// run sends the chain's requests one after another. It comes with one request already counted as in flight.
func (r *Replay) run(ctx context.Context, start, due time.Time, next ready, ended chan<- *Sample) {
	for i, req := range next.chain {
		if i > 0 {
			due = time.Now().Add(r.scaled(req.Delay))
			next.body = r.endpoint.body(req)
			if !wait(ctx, due) {
				return
			}
			r.inFlight.Add(1)
		}
		s := newSample(req, due.Sub(start))
		r.send(ctx, next.body, due, s)
		r.inFlight.Add(-1)
		ended <- s
	}
}

// send sends one request and counts it.
func (r *Replay) send(ctx context.Context, body []byte, due time.Time, s *Sample) {
	limited, cancel := context.WithTimeoutCause(ctx, r.cfg.Timeout, errTimedOut)
	defer cancel()
	r.sent.Add(1)
	r.endpoint.send(limited, body, due, s)
	r.tokens.Add(int64(s.OutputTokens))
	if s.Outcome == Answered {
		r.answered.Add(1)
		return
	}
	r.failed.Add(1)
	if limited.Err() == nil || s.Status != 0 && s.Status != 200 {
		return
	}
	s.Outcome, s.Detail = Cancelled, ""
	if errors.Is(context.Cause(limited), errTimedOut) {
		s.Outcome = TimedOut
	}
}

// scaled is a time of the workload at the replay's speed.
func (r *Replay) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / r.cfg.Speed)
}

// wait waits until a time and reports whether ctx let it.
func wait(ctx context.Context, until time.Time) bool {
	left := time.Until(until)
	if left <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
