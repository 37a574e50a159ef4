package placement

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// Permits decide which workers may be called in a role, prefill or decode, as circuit breakers do.
type Permits interface {
	// Blocked returns the workers that Acquire refuses now for an adapter, empty for none; OnTrial returns those of them
	// with a call on trial.
	Blocked(role pools.Role, adapter string) []string
	OnTrial(role pools.Role, adapter string) []string
	// Acquire permits one call to a worker's process for an adapter; done reports how it ended (see [Booking]). failOpen
	// permits the call although the worker is blocked, unless it is on trial.
	Acquire(worker, incarnation string, role pools.Role, adapter string, failOpen bool) (done func(error), err error)
}

// leg returns the role in which a pool's workers are called: those of role both decode.
func leg(p *pools.Pool) pools.Role {
	if p.Role == pools.Prefill {
		return pools.Prefill
	}
	return pools.Decode
}

// blocked returns the workers of a pool that may not be called for an adapter.
func (p *Placer) blocked(pool *pools.Pool, adapter string) []string {
	if p.Permits == nil {
		return nil
	}
	return p.Permits.Blocked(leg(pool), adapter)
}

// survey counts the workers of a pool that could serve an ask: they are up, have what it requires and room for its prompt.
type survey struct {
	blocked, trials []string // of the whole pool
	ejected         []string
	free            bool // one of them is neither blocked nor tried by the ask
	rest            bool // nor ejected
	onTrial         bool // there are such workers, and all are on trial
}

func (p *Placer) survey(pool *pools.Pool, ask *Ask, now time.Time) (s survey) {
	if p.Ejected != nil {
		s.ejected = p.Ejected(pool)
	}
	if s.blocked = p.blocked(pool, ask.Adapter); len(s.blocked) > 0 {
		s.trials = p.Permits.OnTrial(leg(pool), ask.Adapter)
	}
	in, req := p.Routers.For(ask.Model, pool.Role), ask.Request
	req.Pin = ask.pin(pool.Role)
	able, testing := 0, 0
	for i := range pool.Members {
		m := &pool.Members[i]
		if !m.Eligible(now) || !in.Suits(m.Worker, &req) {
			continue
		}
		able++
		if slices.Contains(s.trials, m.Worker.ID) {
			testing++
		} else if !slices.Contains(s.blocked, m.Worker.ID) && !slices.Contains(ask.Exclude, m.Worker.ID) {
			s.free, s.rest = true, s.rest || !slices.Contains(s.ejected, m.Worker.ID)
		}
	}
	s.onTrial = able > 0 && testing == able
	return s
}

// permitted is what the permits leave of a route's workers.
type permitted struct {
	exclude  []string     // those that the ask has tried, and those that may not be called
	failOpen []pools.Role // in which only blocked workers could serve the ask: they are called anyway
	onTrial  []pools.Role // in which every worker that could serve is on trial: its end is worth waiting for
}

// permits excludes workers on trial and, if the ask has others, blocked and ejected ones.
func (r *Route) permits(now time.Time) permitted {
	l := permitted{exclude: r.ask.Exclude}
	for _, pool := range [...]*pools.Pool{r.Prefill, r.Decode} {
		blocked := len(r.placer.blocked(pool, r.ask.Adapter)) > 0
		if !blocked && (r.placer.Ejected == nil || len(r.placer.Ejected(pool)) == 0) {
			continue
		}
		s := r.placer.survey(pool, r.ask, now)
		if s.rest {
			l.exclude = slices.Concat(l.exclude, s.ejected)
		}
		if !blocked {
			continue
		}
		if s.free {
			l.exclude = slices.Concat(l.exclude, s.blocked)
			continue
		}
		l.exclude, l.failOpen = slices.Concat(l.exclude, s.trials), append(l.failOpen, leg(pool))
		if s.onTrial {
			l.onTrial = append(l.onTrial, leg(pool))
		}
	}
	return l
}

// wait turns the lack of a worker into a wait if the end of a trial will show whether there is one.
func (l *permitted) wait(err error) error {
	lacks := pools.Prefill
	if errors.Is(err, ErrNoDecode) {
		lacks = pools.Decode
	} else if !errors.Is(err, ErrNoPrefill) {
		return err
	}
	if slices.Contains(l.onTrial, lacks) {
		return fmt.Errorf("%w: %w", ErrOnTrial, err)
	}
	return err
}

// acquire acquires the permit for a booking. It fails if another request has taken the permit since.
func (p *Placer) acquire(b *Booking, role pools.Role, adapter string, l *permitted) (err error) {
	switch {
	case b.Lease == nil:
	case p.Permits == nil:
		b.Done = func(error) {}
	default:
		b.Done, err = p.Permits.Acquire(b.Worker.ID, b.Worker.Incarnation, role, adapter, slices.Contains(l.failOpen, role))
	}
	return err
}
