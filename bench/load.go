package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// client holds an arm's lanes from round to round.
type client struct {
	front, back string

	mu      sync.Mutex // guards idle, all and closed
	idle    []*lane    // the one used last is used next, as connection pools do
	all     []*lane
	closed  bool
	reading sync.WaitGroup
}

// take gives an idle lane, or a new one.
func (c *client) take() (*lane, error) {
	c.mu.Lock()
	for len(c.idle) > 0 {
		l := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		if !l.dead.Load() {
			c.mu.Unlock()
			return l, nil
		}
	}
	c.mu.Unlock()
	return c.dial()
}

// dial opens another lane.
func (c *client) dial() (*lane, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the client is closed")
	}
	l, err := newLane(c.front, c.back)
	if err != nil {
		return nil, err
	}
	c.all = append(c.all, l)
	c.reading.Go(l.read)
	return l, nil
}

// once sends one job and waits for its end, over a lane of its own or an idle one.
func (c *client) once(ctx context.Context, j *job, own bool) error {
	r := &load{client: c, ended: make(chan struct{}), start: time.Now()}
	r.left.Store(1)
	j.run = r
	take := c.take
	if own {
		take = c.dial
	}
	l, err := take()
	if err != nil {
		return err
	}
	l.begin(j)
	return errors.Join(r.await(ctx, 0), j.err)
}

func (c *client) give(l *lane) {
	if l.dead.Load() {
		return
	}
	c.mu.Lock()
	c.idle = append(c.idle, l)
	c.mu.Unlock()
}

// lanes are all that were ever opened.
func (c *client) lanes() []*lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// close cuts every lane, with its running requests.
func (c *client) close() {
	c.mu.Lock()
	c.closed = true
	for _, l := range c.all {
		l.close()
	}
	c.mu.Unlock()
	c.reading.Wait()
}

// load is one run of jobs over a client's lanes.
type load struct {
	client *client
	start  time.Time
	left   atomic.Int64
	ended  chan struct{}        // closed when none is left
	next   func(over *job) *job // of a closed loop: what follows; nil for nothing
}

// finish takes a lane back whose job has ended.
func (r *load) finish(l *lane, over *job) {
	if r.next != nil {
		if j := r.next(over); j != nil && !l.dead.Load() {
			l.begin(j)
			return
		}
	}
	r.client.give(l)
	if r.left.Add(-1) == 0 {
		close(r.ended)
	}
}

// patience is how long answers may take after the last request was sent.
const patience = 20 * time.Second

// longestSleep is how soon a sleep notices that the run is over.
const longestSleep = 50 * time.Millisecond

var errLost = errors.New("answers are missing")

// await waits for the end of every job; the last may be sent after d.
func (r *load) await(ctx context.Context, d time.Duration) error {
	late := time.NewTimer(d + patience)
	defer late.Stop()
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return fmt.Errorf("%w: %d after %v", errLost, r.left.Load(), patience)
	}
}

// open sends each job when it is due, independent of earlier ones, and returns when all have ended. The error concerns
// the run: jobs keep their own.
func (c *client) open(ctx context.Context, jobs []job) error {
	if len(jobs) == 0 {
		return nil
	}
	r := &load{client: c, ended: make(chan struct{})}
	r.left.Store(int64(len(jobs)))
	var failed error
	precisely(func(sleep func(time.Duration)) {
		r.start = time.Now()
		for i := range jobs {
			j := &jobs[i]
			j.run = r
			for d := j.due - time.Since(r.start); d > 0 && ctx.Err() == nil; d = j.due - time.Since(r.start) {
				sleep(min(d, longestSleep))
			}
			if ctx.Err() != nil {
				failed = ctx.Err()
				return
			}
			l, err := c.take()
			if err != nil {
				failed = err
				return
			}
			l.begin(j)
		}
	})
	if failed != nil {
		return failed
	}
	return r.await(ctx, 0)
}

// loop keeps so many lanes busy for so long with the jobs, in order and from the beginning again. It returns how many
// succeeded and the first error.
func (c *client) loop(ctx context.Context, lanes int, d time.Duration, jobs []job) (int, error) {
	r := &load{client: c, ended: make(chan struct{}), start: time.Now()}
	r.left.Store(int64(lanes))
	var mu sync.Mutex
	var first error
	sent, answered := 0, 0
	r.next = func(over *job) *job {
		mu.Lock()
		defer mu.Unlock()
		since := time.Since(r.start)
		switch {
		case over != nil && over.err != nil && first == nil:
			first = over.err
		case over != nil && over.err == nil:
			answered++
		}
		if since >= d || ctx.Err() != nil {
			return nil
		}
		j := jobs[sent%len(jobs)]
		sent++
		j.due, j.run = since, r
		return &j
	}
	for range lanes {
		l, err := c.take()
		if err != nil {
			return 0, err
		}
		j := r.next(nil)
		if j == nil {
			return 0, ctx.Err()
		}
		l.begin(j)
	}
	if err := r.await(ctx, d); err != nil {
		return 0, err
	}
	mu.Lock()
	defer mu.Unlock()
	return answered, first
}

// schedule is when requests are sent, from the round's beginning, in rising
// order: a Poisson process of the given rate, the same for the same seed.
//
// It is drawn again for every round but not for every arm: arms of one round see
// the same arrivals, so that their difference is not one of luck.
func schedule(r rate, seed, round uint64) []time.Duration {
	rng := rand.New(rand.NewPCG(seed, round))
	var times []time.Duration
	for at := rng.ExpFloat64(); ; at += rng.ExpFloat64() {
		t := time.Duration(at / r.PerSecond * float64(time.Second))
		if t >= r.For {
			return times
		}
		times = append(times, t)
	}
}
