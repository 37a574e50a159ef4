package follow

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// Config configures a [Subscriber]. Zero fields mean the default.
type Config struct {
	Seed               uint64        // of the jitter between attempts
	PageTimeout        time.Duration // of one page of a snapshot, and between two replayed messages; 2 s
	RetryMin, RetryMax time.Duration // between repair attempts, doubling, with jitter; 200 ms, 5 s
	SnapshotEvery      time.Duration // minimum between two snapshots without a missing message; 10 s
	Concurrency        int           // snapshots fetched at once; 16
	MaxSnapshotBytes   int           // of one snapshot or replay; 256 MiB
	// QuietCheck is the silence after which an engine's replay socket is queried, 10 s by default: over ZMQ nothing
	// else shows that the last message was lost.
	QuietCheck time.Duration
	// SilentAfter and PredictAfter are the silence over NATS after which a source is [Silent] and [Predicted]. It is
	// also silent while the bus's Connected() bool, if it has one, is false.
	SilentAfter, PredictAfter time.Duration // 5 s, 1 min
	// Relearn is how long an engine must re-announce after a loss before its view is reliable, 2 min by default: the
	// lifetime of the router's predictions.
	Relearn time.Duration
	// OnState runs in Run when the state or epoch of a source changed. It must not block.
	OnState func()
	// OnCut runs in Run when an engine closed its event connection, as an ending process does. It may be nil and must
	// not block.
	OnCut func(worker string)
	// ZMQ configures connections to engines that publish themselves. Messages have at most [wire.MaxBatchBytes] by
	// default.
	ZMQ zmq.Options

	Tap Tap // runs at each change of a view; may be nil
	// Group is the other gateways, whose views Run requests at its start; nil for none.
	Group *Group
}

// Index records the blocks of a pool's workers: [index.Index].
type Index interface {
	// Part returns the part of a worker's rank.
	Part(worker string, rank int) index.Part
	// Drop removes a worker with all blocks of its ranks.
	Drop(worker string)
}

// Subscriber keeps indexes in sync with what workers publish. It follows the workers given to [Subscriber.Track], and
// drops the messages of others: a source tracked later begins with a snapshot.
//
// One goroutine, Run's, handles every message and feeds every index, in order and without locks. If it is too slow,
// NATS drops messages, and ZMQ publishers drop them at their high-water mark; the numbers show both.
type Subscriber struct {
	cfg      Config
	bus      wire.Bus
	indexFor func(pool string) Index
	log      *slog.Logger
	metrics  *counters

	messages chan *nats.Msg
	arrivals chan arrival // over ZMQ; unbuffered, so that messages wait in the sockets
	fetched  chan fetched
	kick     chan struct{}  // holds at most one: wanted changed
	asked    chan *question // of other gateways
	joined   chan joined    // once

	mu        sync.Mutex            // guards all below; Run alone changes followers
	wanted    map[workerKey]tracked // the last Track or Untrack
	lives     uint64                // counts Tracks of new workers
	followers map[string]follower   // by events subject

	// Run's own.
	rng     *rand.Rand
	batch   wire.Batch
	links   map[*zmqSource]context.CancelFunc // over ZMQ
	awaited map[int]*awaiting                 // by port
	linked  sync.WaitGroup
	fetches sync.WaitGroup
	active  int
	dropped int
	timer   *time.Timer
	reach   reach
	peers   *peers
}

type workerKey struct{ pool, worker string }

// tracked is how to follow a worker. ranks is immutable.
type tracked struct {
	ranks     []int
	blockSize int
	capacity  int         // blocks of each rank; 0: unknown
	zmq       zmq.Address // without an Endpoint it is followed over NATS
	life      uint64      // changes after each Untrack
}

// New returns a Subscriber without workers. bus may be nil if all publish over ZMQ. indexFor returns the index of a
// pool ("model/role"), always the same; Run calls it. reg may be nil.
func New(cfg Config, bus wire.Bus, indexFor func(pool string) Index, log *slog.Logger, reg prometheus.Registerer) *Subscriber {
	cfg.PageTimeout = cmp.Or(cfg.PageTimeout, 2*time.Second)
	cfg.RetryMin = cmp.Or(cfg.RetryMin, 200*time.Millisecond)
	cfg.RetryMax = max(cmp.Or(cfg.RetryMax, 5*time.Second), cfg.RetryMin)
	cfg.SnapshotEvery = cmp.Or(cfg.SnapshotEvery, 10*time.Second)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 16)
	cfg.MaxSnapshotBytes = cmp.Or(cfg.MaxSnapshotBytes, 256<<20)
	cfg.SilentAfter = cmp.Or(cfg.SilentAfter, 5*time.Second)
	cfg.PredictAfter = max(cmp.Or(cfg.PredictAfter, time.Minute), cfg.SilentAfter)
	cfg.Relearn = cmp.Or(cfg.Relearn, 2*time.Minute)
	cfg.QuietCheck = cmp.Or(cfg.QuietCheck, 10*time.Second)
	cfg.ZMQ.MaxMessageBytes = cmp.Or(cfg.ZMQ.MaxMessageBytes, wire.MaxBatchBytes+64<<10) // with its topic
	s := &Subscriber{
		cfg: cfg, bus: bus, indexFor: indexFor, log: log,
		messages: make(chan *nats.Msg, 1024), arrivals: make(chan arrival), fetched: make(chan fetched), kick: make(chan struct{}, 1),
		asked: make(chan *question), joined: make(chan joined), peers: &peers{group: cfg.Group},
		wanted: map[workerKey]tracked{}, followers: map[string]follower{}, links: map[*zmqSource]context.CancelFunc{},
		awaited: map[int]*awaiting{},
		rng:     rand.New(rand.NewPCG(cfg.Seed, 0)),
	}
	s.metrics = newMetrics(reg, s.Sources)
	return s
}

// Track follows a worker's ranks, beginning with snapshots. blockSize is the router's, in tokens, 1 to 65,535. kvBlocks
// is the registered number of such blocks per rank, 0 unknown: a rank that names many times as many is [Predicted]. For
// a followed worker it applies the changes. It does not block, and may be called before Run. Only the Subscriber may
// drop a followed worker from the index.
func (s *Subscriber) Track(pool, worker string, ranks []int, blockSize, kvBlocks int) {
	if s.bus == nil {
		return
	}
	s.track(workerKey{pool, worker}, tracked{ranks: slices.Clone(ranks), blockSize: blockSize, capacity: kvBlocks})
}

func (s *Subscriber) track(key workerKey, t tracked) {
	s.mu.Lock()
	if was, still := s.wanted[key]; still {
		t.life = was.life
	} else {
		s.lives++
		t.life = s.lives
	}
	s.wanted[key] = t
	s.mu.Unlock()
	s.poke()
}

// Untrack stops following a worker and drops it from the pool's index, even if Track follows at once. It does not
// block.
func (s *Subscriber) Untrack(pool, worker string) {
	s.mu.Lock()
	delete(s.wanted, workerKey{pool, worker})
	s.mu.Unlock()
	s.poke()
}

// Sources returns the state of each source, by pool, worker and rank.
func (s *Subscriber) Sources() []SourceStatus {
	s.mu.Lock()
	all := make([]SourceStatus, 0, len(s.followers))
	for _, f := range s.followers {
		all = append(all, f.base().status())
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b SourceStatus) int {
		return cmp.Or(cmp.Compare(a.Source.Pool, b.Source.Pool), cmp.Compare(a.Source.Worker, b.Source.Worker),
			cmp.Compare(a.Source.Rank, b.Source.Rank))
	})
	return all
}

// Source returns the state of one source; ok is false if it is not followed.
func (s *Subscriber) Source(source wire.Source) (status SourceStatus, ok bool) {
	s.mu.Lock()
	f := s.followers[source.EventsSubject()]
	s.mu.Unlock()
	if f == nil {
		return SourceStatus{}, false
	}
	return f.base().status(), true
}

// Run follows until ctx ends, then returns nil. It may be called once. It fails if the bus cannot be subscribed to.
func (s *Subscriber) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	drops := make(chan int, 1)
	stop, err := s.subscribe(ctx, drops)
	if err != nil {
		cancel()
		return err
	}
	defer stop()
	defer s.fetches.Wait()
	defer s.linked.Wait()
	defer cancel()
	s.timer = time.NewTimer(0)
	defer s.timer.Stop()
	s.reach = reach{s.bus == nil || connected(s.bus), time.Now()}
	look := time.NewTicker(min(time.Second, s.cfg.SilentAfter/4+1))
	defer look.Stop()
	s.join(ctx)
	s.reconcile(ctx)
	for ctx.Err() == nil {
		if !guard.Do(s.log, "kv_events", func() { s.step(ctx, look.C, drops) }) {
			guard.Do(s.log, "kv_events", func() { s.renew(ctx) })
		}
	}
	return nil
}

// subscribe forwards NATS messages to the loop.
func (s *Subscriber) subscribe(ctx context.Context, drops chan<- int) (stop func(), err error) {
	if s.bus == nil {
		return func() {}, nil
	}
	handle := func(m *nats.Msg) {
		select {
		case s.messages <- m:
		case <-ctx.Done():
		}
	}
	stopBeats, err := s.bus.Subscribe(wire.AllBeats, handle, func(int) {}) // the next heartbeat replaces a dropped one
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", wire.AllBeats, err)
	}
	stopEvents, err := s.bus.Subscribe(wire.AllEvents, handle, func(dropped int) {
		select {
		case drops <- dropped:
		case <-ctx.Done():
		}
	})
	if err != nil {
		stopBeats()
		return nil, fmt.Errorf("subscribe to %s: %w", wire.AllEvents, err)
	}
	return func() { stopBeats(); stopEvents() }, nil
}

func (s *Subscriber) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// reconcile makes the followers match the wanted workers.
func (s *Subscriber) reconcile(ctx context.Context) {
	s.mu.Lock()
	wanted := make(map[string]wire.Source)
	how := make(map[string]tracked)
	for key, t := range s.wanted {
		for _, rank := range t.ranks {
			source := wire.Source{Pool: key.pool, Worker: key.worker, Rank: rank}
			wanted[source.EventsSubject()] = source
			how[source.EventsSubject()] = t
		}
	}
	old := s.followers
	s.mu.Unlock()

	// A worker is dropped from the index as a whole, so siblings of a changed rank begin again.
	again := map[workerKey]bool{}
	for subject, f := range old {
		is := f.base()
		if t, ok := how[subject]; !ok || t.blockSize != is.how.blockSize || t.zmq != is.how.zmq ||
			t.capacity != is.how.capacity || t.life != is.how.life {
			again[workerKey{is.name.Pool, is.name.Worker}] = true
		}
	}
	for key := range again {
		s.indexFor(key.pool).Drop(key.worker)
	}
	next := make(map[string]follower, len(wanted))
	for subject, source := range wanted {
		if f, ok := old[subject]; ok && !again[workerKey{source.Pool, source.Worker}] {
			next[subject] = f
			continue
		}
		next[subject] = s.follow(source, how[subject])
	}
	s.mu.Lock()
	s.followers = next
	s.mu.Unlock()
	s.relink(ctx)
}

// follow begins to follow a rank.
func (s *Subscriber) follow(name wire.Source, how tracked) (f follower) {
	part := s.indexFor(name.Pool).Part(name.Worker, name.Rank)
	is := newSource(name, part, how, &s.cfg, &s.batch, s.metrics.pool(name.Pool), s.log)
	if how.zmq.Endpoint != "" {
		f = newZMQSource(is)
	} else {
		f = newNATSSource(is)
	}
	is.lastSeen = time.Now()
	is.restoring = s.peers.mayRestore(is.lastSeen)
	is.onState = func(was, now State) { s.report(f, was, now) }
	return f
}

// take handles one message and reports whether it makes a repair wanted.
func (s *Subscriber) take(m *nats.Msg, now time.Time) bool {
	subject, beat := wire.EventsOfBeat(m.Subject)
	if !beat {
		subject = m.Subject
	}
	p, ok := s.followers[subject].(*natsSource)
	if !ok || beat && len(m.Data) > 0 {
		s.metrics.untracked.Inc()
		return false
	}
	wanted, err := p.take(m, now)
	if err != nil {
		s.metrics.untracked.Inc()
		s.log.Debug("KV event message without numbers", "source", p.name, "error", err)
	}
	return wanted
}
