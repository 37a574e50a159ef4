package service

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
)

// follow tells the subscriber which workers to follow, as the roster changes, and
// the routers which of those cannot be relied on, as their events come.
type follow struct {
	roster     *pools.Roster
	subscriber *events.Subscriber
	routers    *router.Set
	nats       bool // there is a bus
	log        *slog.Logger

	mu      sync.Mutex // guards what follows
	was     map[string]followed
	doubted map[string]string // what routers were told, by pool
}

// followed is what makes a worker another one to the subscriber.
type followed struct {
	pool, incarnation string
	ranks, blockSize  int
	kvBlocks          int
	zmq               events.ZMQ // without an endpoint where it is NATS
}

// update is called after each change of the roster, by several at once.
func (f *follow) update() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[string]followed{}
	for _, p := range f.roster.Pools() {
		for _, m := range p.Members {
			w := m.Worker
			if w.KVEvents != "zmq" && (w.KVEvents != "nats" || !f.nats) {
				continue
			}
			now[w.ID] = followed{
				p.Name(), w.Incarnation, w.Ranks(), w.BlockSize, w.TotalKVBlocks,
				events.ZMQ{Endpoint: w.KVEndpoint, Replay: w.KVReplay, Topic: w.KVTopic},
			}
		}
	}
	for id, old := range f.was { // first, for a port of theirs may be another's now
		if old != now[id] {
			f.subscriber.Untrack(old.pool, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if f.was[id] != now[id] {
			f.track(now[id], id)
		}
	}
	f.was = now
	f.doubt()
}

// track has one worker followed. The caller holds f.mu.
func (f *follow) track(w followed, id string) {
	ranks := slices.Collect(upTo(w.ranks))
	if w.zmq.Endpoint == "" {
		f.subscriber.Track(w.pool, id, ranks, w.blockSize, w.kvBlocks)
	} else if err := f.subscriber.TrackZMQ(w.pool, id, ranks, w.blockSize, w.kvBlocks, w.zmq); err != nil {
		f.log.Warn("KV events are not followed, the worker's cache is predicted", "worker", id, "error", err)
	}
}

// changed is called when the state of a source has changed.
func (f *follow) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubt()
}

// doubt tells each pool's router which ranks are predicted although they publish:
// those that nobody follows, those whose events are lost for good, and engines that
// were not heard yet. The caller holds f.mu.
func (f *follow) doubt() {
	states := map[events.Source]events.State{}
	for _, s := range f.subscriber.Sources() {
		states[s.Source] = s.State
	}
	for _, p := range f.roster.Pools() {
		ranks, told := map[router.Rank]struct{}{}, ""
		for _, m := range p.Members {
			w := m.Worker
			if w.KVEvents == "" || w.KVEvents == "none" {
				continue
			}
			for rank := range w.Ranks() {
				state, known := states[events.Source{Pool: p.Name(), Worker: w.ID, Rank: rank}]
				unheard := !known || state == events.Waiting
				if state == events.Predicted || unheard && (w.KVEvents == "zmq" || !f.nats) {
					ranks[router.Rank{Worker: w.ID, Rank: rank}] = struct{}{}
					told += fmt.Sprintf("%s/%d ", w.ID, rank)
				}
			}
		}
		if f.doubted[p.Name()] != told {
			f.doubted[p.Name()] = told
			f.routers.For(p.Model, p.Role).Doubt(ranks)
		}
	}
}
