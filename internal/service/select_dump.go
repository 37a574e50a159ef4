package service

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/index"
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

// restore takes over a sibling's workers, what they hold, and its reservations.
func (c *chooser) restore(ctx context.Context, r *dumpReader) error {
	var told []*blocksLine
	var reserved []*reservationLine
	for {
		l, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch {
		case l.Worker != nil:
			c.restoreWorker(l.Worker)
		case l.Blocks != nil:
			told = append(told, l.Blocks)
		case l.Reservation != nil:
			reserved = append(reserved, l.Reservation)
		}
	}
	if err := restorePublished(ctx, c.follow.subscriber, told, c.publishedOf, c.log); err != nil {
		return err
	}
	c.restoreReservations(reserved, time.Now())
	return nil
}

// restoreWorker takes a worker over; the roster logs one that it refuses.
func (c *chooser) restoreWorker(record json.RawMessage) {
	w, err := pools.ParseWorker(record)
	if err != nil {
		c.log.Warn("a sibling's worker is not taken over", "worker", w.ID, "error", err)
		return
	}
	_ = c.source.Put(w)
}

// publishedOf is the index of a worker that publishes over NATS; nil of others.
func (c *chooser) publishedOf(worker string) *index.Index {
	m, known := c.roster.Lookup(worker)
	if !known || m.Worker.KVEvents != "nats" {
		return nil
	}
	return c.routers.Index(m.Worker.Model, m.Worker.Role)
}

// restoreReservations books again what a sibling had booked, in the order in
// which it did: each finds no more booked before it than it found then, if
// output is added at the end. One whose worker has gone is left out.
func (c *chooser) restoreReservations(lines []*reservationLine, now time.Time) {
	type growth struct {
		lease  *router.Lease
		blocks int
	}
	var grown []growth
	for _, l := range lines {
		if len(l.Legs) == 0 || !c.held.claim(l.ID) {
			continue
		}
		legs, err := c.rebook(l, now)
		if err != nil {
			c.held.giveUp(l.ID)
			c.log.Warn("a sibling's reservation is not taken over", "error", err)
			continue
		}
		res := &reservation{
			id: l.ID, model: l.Model, promptTokens: l.PromptTokens, chain: l.Hashes, legs: legs,
			prefillDone: l.PrefillDone, outputBlocks: max(0, l.OutputBlocks),
		}
		left := min(time.Duration(max(0, l.EndsInMillis))*time.Millisecond, c.held.ttl)
		c.held.keep(res, now.Add(left))
		if l.OutputBlocks > 0 {
			grown = append(grown, growth{legs[len(legs)-1].lease, l.OutputBlocks})
		}
	}
	for _, g := range grown {
		g.lease.Grow(g.blocks, now)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// rebook books the legs of a line, all or none.
func (c *chooser) rebook(l *reservationLine, now time.Time) ([]leased, error) {
	var legs []leased
	for _, on := range l.Legs {
		if !on.Role.Valid() {
			return nil, errors.New("a leg of no known role")
		}
		req := router.Request{
			ID: l.ID, ISL: l.PromptTokens, Hashes: l.Hashes, Pin: &router.Pin{Worker: on.Worker, Ranked: true, Rank: on.Rank},
		}
		lease, err := c.routers.For(l.Model, on.Role).Reserve(c.roster.Snapshot(l.Model, on.Role), req, now)
		if err != nil {
			for _, held := range legs {
				held.lease.Release(now)
			}
			return nil, err
		}
		if l.PrefillDone {
			lease.PrefillDone(now)
		}
		legs = append(legs, leased{on.Role, lease})
	}
	return legs, nil
}
