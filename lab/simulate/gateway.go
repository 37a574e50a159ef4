package simulate

import (
	"cmp"
	"log/slog"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// gateway is one of a run's gateways: a queue, and routers with books and indexes of their own.
type gateway struct {
	run      *run
	number   int32
	routers  *router.Set
	placer   placement.Placer
	queue    *queue.Core[int32]
	slicing  placement.Slicing
	links    *placement.Links
	outliers *outliers
	member   *member   // nil where nothing is shared
	learned  *learned  // nil where predictions are the engines' own model
	speeds   *learned  // of prefill, by which transfers are priced
	indexed  []indexed // by machine
	wakeAt   int64     // of the queue, on the agenda
	wakeTurn uint32
	draining bool
	again    bool
}

// indexed is where a machine's KV events go.
type indexed struct {
	index *index.Index // of its pool; nil where nothing is looked up
	owner index.Owner
}

// addGateway makes a gateway in front of the fleet.
func (r *run) addGateway(number int32) (err error) {
	g := &gateway{run: r, number: number, wakeAt: never, indexed: make([]indexed, len(r.machines))}
	if g.routers, err = router.NewSet(g.sharing(g.forecasting(r.cfg.Routers)), slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	g.speeds = cmp.Or(g.learned, newLearned())
	g.links = placement.NewLinks(g.computes)
	g.outliers = r.newOutliers()
	g.placer = placement.Placer{Routers: g.routers, Fallback: true, Transfers: g.links, Ejected: g.outliers.Ejected}
	for i, m := range r.machines {
		g.indexed[i] = g.follows(m.worker)
	}
	g.queue, err = queue.NewCore(r.cfg.Queue, r.epoch, r.ended)
	r.gateways = append(r.gateways, g)
	return err
}

// follows returns where a worker's KV events go.
func (g *gateway) follows(w *pools.Worker) indexed {
	if w.Role == pools.Decode {
		return indexed{}
	}
	to := g.routers.Index(Model, w.Role)
	return indexed{to, to.Owner(w.ID, 0)}
}

// drain grants requests while there is room. Its effects may call it again.
func (g *gateway) drain() {
	if g.draining {
		g.again = true
		return
	}
	r := g.run
	g.draining = true
	for g.again = true; g.again; {
		g.again = false
		now := r.at(r.now)
		g.queue.Drain(now, func(t *queue.Ticket[int32], d queue.Drain[int32]) error { return r.reserve(t.Value, d, now) })
	}
	g.draining = false
	g.wakeLater()
}

// wakeLater puts on the agenda when the queue is to be looked at although nothing has happened.
func (g *gateway) wakeLater() {
	r, wake := g.run, int64(never)
	if at := g.queue.NextWake(); !at.IsZero() {
		wake = int64(at.Sub(r.epoch))
	}
	if wake != g.wakeAt {
		g.wakeAt = wake
		g.wakeTurn++
		if wake != never {
			r.agenda.add(event{at: max(wake, r.now), what: expire, who: g.number, turn: g.wakeTurn})
		}
	}
}

// expire ends requests that have waited too long, unless the agenda's entry is void.
func (g *gateway) expire(turn uint32) {
	if turn == g.wakeTurn {
		g.wakeAt = never
		g.queue.Expire(g.run.at(g.run.now))
		g.drain()
	}
}

// apply enters a machine's KV events in every gateway's index.
func (r *run) apply(machine int32, events []engine.Event) {
	for _, g := range r.gateways {
		to := &g.indexed[machine]
		if to.index == nil {
			continue // the worker has become a decode worker
		}
		for i := range events {
			switch e := &events[i]; e.Kind {
			case engine.Stored:
				if e.HasParent {
					to.index.Extend(to.owner, index.Device, e.Parent, e.Hashes)
				} else {
					to.index.Store(to.owner, index.Device, e.Hashes)
				}
			case engine.Removed:
				to.index.Remove(to.owner, index.Device, e.Hashes)
			case engine.Cleared:
				to.index.Clear(to.owner)
			}
		}
	}
}
