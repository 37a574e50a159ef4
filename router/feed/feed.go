package feed

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Config configures a [Feed].
type Config struct {
	Events follow.Config // its OnState is the Feed's
	// Reannounce lets requests ask engines whose events were lost to re-announce the cached prefixes they use.
	Reannounce bool
	// Computed returns when a worker last computed a prompt or generated a token, zero for never: KV events are
	// expected then. It may be nil.
	Computed func(worker string) time.Time
}

// Feed follows the KV events of a roster's workers, and reports to their routers which ranks' events are unreliable. A
// nil Feed follows nothing.
type Feed struct {
	roster     *pools.Roster
	routers    *router.Set
	subscriber *follow.Subscriber
	reannounce *reannounce // nil: off
	nats       bool        // there is a bus
	log        *slog.Logger
	computed   func(worker string) time.Time

	mu       sync.Mutex          // guards all below
	followed map[string]followed // by worker id
	stale    map[string]ranks    // as last reported to routers, by pool
	epochs   map[wire.Source]uint64
	tracked  map[string]time.Time // since when, by worker id
	silent   map[wire.Source]silent
}

type ranks = map[overlap.Rank]struct{}

// followed is how a worker is followed; a change tracks it again.
type followed struct {
	pool, incarnation string
	ranks, blockSize  int
	kvBlocks          int
	zmq               zmq.Address // without an endpoint over NATS
}

// New returns a Feed that is not running; routers predict workers without events from now on. With a nil bus workers are
// followed over ZeroMQ only.
func New(cfg Config, bus wire.Bus, roster *pools.Roster, routers *router.Set, log *slog.Logger, reg prometheus.Registerer) *Feed {
	f := &Feed{roster: roster, routers: routers, nats: bus != nil, log: log, computed: cfg.Computed,
		stale: map[string]ranks{}, tracked: map[string]time.Time{}}
	cfg.Events.OnState = f.changed
	f.subscriber = follow.New(cfg.Events, bus, func(pool string) follow.Index { return routers.Index(split(pool)) }, log, reg)
	if cfg.Reannounce {
		f.reannounce = &reannounce{status: f.subscriber.Source}
	}
	f.roster.OnChange(f.update)
	f.update()
	return f
}

// split returns the model and the role of a pool's name.
func split(pool string) (model string, role pools.Role) {
	i := strings.LastIndexByte(pool, '/')
	return pool[:i], pools.Role(pool[i+1:])
}

// Run follows until ctx ends. It may be called once. It fails if the bus cannot be subscribed to.
func (f *Feed) Run(ctx context.Context) error {
	var silent sync.WaitGroup
	defer silent.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	silent.Go(func() { f.runSilent(ctx) })
	return f.subscriber.Run(ctx)
}

// Sources returns the state of every followed rank.
func (f *Feed) Sources() []follow.SourceStatus {
	if f == nil {
		return nil
	}
	return f.subscriber.Sources()
}

// EngineBlock returns the block size in tokens that a rank's events report, 0 unknown.
func (f *Feed) EngineBlock(w *pools.Worker, rank int) int {
	if f == nil {
		return 0
	}
	pool := pools.Pool{Model: w.Model, Role: w.Role}
	s, _ := f.subscriber.Source(wire.Source{Pool: pool.Name(), Worker: w.ID, Rank: rank})
	return s.BlockSize
}

// Reannounce reports whether the next request to a rank asks its engine to announce the cached prefix that the request
// uses. Every request calls it; it costs one atomic load if nothing is lost.
func (f *Feed) Reannounce(w *pools.Worker, rank int) bool {
	return f != nil && f.reannounce != nil && f.reannounce.wanted(w, rank)
}

// update runs after each change of the roster, on several goroutines at once.
func (f *Feed) update() {
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
				zmq.Address{Endpoint: w.KVEndpoint, Replay: w.KVReplay, Topic: w.KVTopic},
			}
		}
	}
	for id, old := range f.followed { // first: another worker may have its port now
		if old != now[id] {
			f.subscriber.Untrack(old.pool, id)
			delete(f.tracked, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if f.followed[id] != now[id] {
			f.track(now[id], id)
		}
	}
	f.followed = now
	f.report()
}

// track follows one worker. The caller holds f.mu.
func (f *Feed) track(w followed, id string) {
	f.tracked[id] = time.Now()
	all := make([]int, w.ranks)
	for i := range all {
		all[i] = i
	}
	if w.zmq.Endpoint == "" {
		f.subscriber.Track(w.pool, id, all, w.blockSize, w.kvBlocks)
	} else if err := f.subscriber.TrackZMQ(w.pool, id, all, w.blockSize, w.kvBlocks, w.zmq); err != nil {
		f.log.Warn("KV events not followed; predicting the worker's cache", "worker", id, "error", err)
	}
}

// changed runs when the state or the epoch of a source changed.
func (f *Feed) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report()
}

// report makes each pool's router predict the ranks whose events are unreliable: those not followed, those with a
// permanent loss, and engines that publish over ZeroMQ and have sent nothing yet. A rank with a new publisher is
// resynchronised: its earlier disagreements no longer count. The caller holds f.mu.
func (f *Feed) report() {
	states, was := map[wire.Source]follow.SourceStatus{}, f.epochs
	f.epochs = map[wire.Source]uint64{}
	for _, s := range f.subscriber.Sources() {
		states[s.Source], f.epochs[s.Source] = s, s.Epoch
	}
	lost := map[overlap.Rank]wire.Source{}
	for _, p := range f.roster.Pools() {
		stale := ranks{}
		for _, m := range p.Members {
			w := m.Worker
			if w.KVEvents == "" || w.KVEvents == "none" {
				continue
			}
			for i := range w.Ranks() {
				rank, source := overlap.Rank{Worker: w.ID, Rank: i}, wire.Source{Pool: p.Name(), Worker: w.ID, Rank: i}
				s, known := states[source]
				if was[source] != s.Epoch {
					f.routers.For(p.Model, p.Role).Sources().Resync(rank)
				}
				if s.State == follow.Predicted && reannounces(w) {
					lost[rank] = source
				}
				unseen := !known || s.State == follow.Waiting
				if s.State == follow.Predicted || unseen && (w.KVEvents == "zmq" || !f.nats) {
					stale[rank] = struct{}{}
				}
			}
		}
		if !maps.Equal(f.stale[p.Name()], stale) {
			f.stale[p.Name()] = stale
			f.routers.For(p.Model, p.Role).Sources().SetStale(stale)
		}
	}
	if f.reannounce != nil {
		f.reannounce.lose(lost)
	}
}
