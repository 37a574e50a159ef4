package service

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/placement"
)

// reservationLine is a reservation in a dump.
type reservationLine struct {
	ID           string    `json:"id"`
	Model        string    `json:"model"`
	PromptTokens int       `json:"prompt_tokens"`
	Hashes       []uint64  `json:"sequence_hashes,omitempty"`
	Legs         []legLine `json:"legs"`
	PrefillDone  bool      `json:"prefill_complete,omitempty"`
	OutputBlocks int       `json:"output_blocks,omitempty"`
	EndsInMillis int64     `json:"expires_in_ms"`
}

type legLine struct {
	Role   pools.Role `json:"role"`
	Worker string     `json:"worker"`
	Rank   int        `json:"rank"`
}

// dump writes the workers, what those that publish hold, and the reservations.
// What is predicted is not in it: the reservations predict it again.
func (c *chooser) dump(w http.ResponseWriter, _ *http.Request) int {
	return dump(w, c.name(), func(d *dumpWriter) {
		ps := c.roster.Pools()
		for _, p := range ps {
			for _, m := range p.Members {
				d.worker(m.Worker)
			}
		}
		for _, p := range ps {
			for _, m := range p.Members {
				for rank := range m.Worker.Ranks() {
					d.blocks(c.routers.Index(p.Model, p.Role), m.Worker.ID, rank)
				}
			}
		}
		for _, l := range c.held.lines(time.Now()) {
			d.add(line{Reservation: l})
		}
	})
}

// restore takes over a sibling's workers, what they hold, and its reservations. The roster logs a worker that it
// refuses.
func (c *chooser) restore(ctx context.Context, r *dumpReader) error {
	var reserved []*reservationLine
	err := r.restore(ctx, c.feed, c.publishedOf, c.log, func(l line) {
		switch {
		case l.Reservation != nil:
			reserved = append(reserved, l.Reservation)
		case l.Worker != nil:
			if w, err := pools.ParseWorker(l.Worker); err != nil {
				c.log.Warn("worker of a sibling not added", "worker", w.ID, "error", err)
			} else {
				_ = c.source.Put(w)
			}
		}
	})
	if err == nil {
		c.restoreReservations(reserved, time.Now())
	}
	return err
}

// publishedOf is the index of a worker that publishes over NATS; nil of others.
func (c *chooser) publishedOf(worker string) *index.Index {
	m, known := c.roster.Lookup(worker)
	if !known || m.Worker.KVEvents != "nats" {
		return nil
	}
	return c.routers.Index(m.Worker.Model, m.Worker.Role)
}

// restoreReservations books again what a sibling had booked, in the order in which it did: each finds no more booked
// before it than it found then, if output is added at the end. One whose worker has gone is left out.
func (c *chooser) restoreReservations(lines []*reservationLine, now time.Time) {
	var grow []func()
	for _, l := range lines {
		if len(l.Legs) == 0 || !c.held.claim(l.ID) {
			continue
		}
		leases, err := c.rebook(l, now)
		if err != nil {
			c.held.giveUp(l.ID)
			c.log.Warn("reservation of a sibling not added", "error", err)
			continue
		}
		res := &reservation{
			id: l.ID, model: l.Model, promptTokens: l.PromptTokens, chain: l.Hashes, leases: leases,
			prefillDone: l.PrefillDone, outputBlocks: max(0, l.OutputBlocks),
		}
		left := min(time.Duration(max(0, l.EndsInMillis))*time.Millisecond, c.held.ttl)
		c.held.keep(res, now.Add(left))
		if l.OutputBlocks > 0 {
			grow = append(grow, func() { leases[len(leases)-1].Grow(l.OutputBlocks, now) })
		}
	}
	for _, g := range grow {
		g()
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// rebook books the legs of a line, all or none.
func (c *chooser) rebook(l *reservationLine, now time.Time) ([]*router.Lease, error) {
	if slices.ContainsFunc(l.Legs, func(on legLine) bool { return !on.Role.Valid() }) {
		return nil, errors.New("a leg of no known role")
	}
	fleet := c.roster.Fleet(l.Model)
	var leases []*router.Lease
	for _, on := range l.Legs {
		ask := &placement.Ask{Model: l.Model, Want: wants[string(on.Role)], Request: router.Request{ID: l.ID, Attempt: 1, ISL: l.PromptTokens, Hashes: l.Hashes}}
		if pin := (&router.Pin{Worker: on.Worker, Ranked: true, Rank: on.Rank}); on.Role == pools.Prefill {
			ask.Pin = pin
		} else {
			ask.DecodePin = pin
		}
		placed, err := c.placer.Book(fleet, ask, nil, now)
		if err != nil {
			for _, lease := range leases {
				lease.Release(now)
			}
			return nil, err
		}
		leases = append(leases, placed.Leases()...)
	}
	if l.PrefillDone {
		for _, lease := range leases {
			lease.PrefillDone(now)
		}
	}
	return leases, nil
}
