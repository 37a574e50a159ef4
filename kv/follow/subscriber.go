package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/contain"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// Config is how a [Subscriber] works. The zero value of each field means its default.
type Config struct {
	Seed               uint64        // of the jitter between attempts
	PageTimeout        time.Duration // of one page of a snapshot, and between two messages of a replay; 2 s
	RetryMin, RetryMax time.Duration // between attempts at a repair, doubling, less a part by chance; 200 ms, 5 s
	SnapshotEvery      time.Duration // the least between two snapshots that no missing message asks for; 10 s
	Concurrency        int           // snapshots fetched at once; 16
	MaxSnapshotBytes   int           // of one snapshot or replay; 256 MiB
	ReplayTimeout      time.Duration // of one replay in all; 30 s
	// QuietCheck is after how long without a message an engine's replay socket is asked for more, by default 10 s: over
	// ZMQ nothing else shows that a last message was lost.
	QuietCheck time.Duration
	// SilentAfter and PredictAfter are how long nothing may come from a source over NATS before it is [Silent], and
	// [Predicted]. It is also silent while the bus has a method Connected() bool that returns false.
	SilentAfter  time.Duration `default:"5s" range:"2s..1h"`
	PredictAfter time.Duration `default:"1m" range:"2s..24h"`
	// Relearn is how long an engine whose events were lost must re-announce what it uses before its view is relied on, by
	// default 2 min, which is how long the router's predictions live.
	Relearn time.Duration
	// OnState is called by Run when the state or the epoch of a source has changed in Sources. It must not wait.
	OnState func()
	// OnCut is called by Run when an engine has closed a connection of its events, as one does whose process ends; nil for nothing. It
	// must not wait.
	OnCut func(worker string)
	// ZMQ is how engines are connected to that publish by themselves. A message may have [wire.MaxBatchBytes] by default.
	ZMQ zmq.Options

	Tap Tap // is called with each change of a view; may be nil
	// Group is the other gateways, which are asked for their views when Run begins; nil for none.
	Group *Group
}

const silentAfter = 5 * time.Second // the default of [Config.SilentAfter]

// Validate names the first field that is out of range.
func (c *Config) Validate() error {
	switch {
	case c.PageTimeout < 0 || c.RetryMin < 0 || c.RetryMax < 0 || c.SnapshotEvery < 0 || c.ReplayTimeout < 0 || c.QuietCheck < 0 || c.Relearn < 0:
		return errors.New("page, replay and relearning times, retry times, snapshot and check intervals must not be negative")
	case c.SilentAfter < 0 || c.PredictAfter < 0:
		return errors.New("silent after and predict after must not be negative")
	case c.PredictAfter != 0 && c.PredictAfter < cmp.Or(c.SilentAfter, silentAfter):
		return fmt.Errorf("predict after %v is below silent after %v", c.PredictAfter, cmp.Or(c.SilentAfter, silentAfter))
	case c.RetryMax != 0 && c.RetryMax < c.RetryMin:
		return fmt.Errorf("retry max %v is below retry min %v", c.RetryMax, c.RetryMin)
	case c.Concurrency < 0 || c.MaxSnapshotBytes < 0:
		return errors.New("concurrency and max snapshot bytes must not be negative")
	}
	return nil
}

// Index is where the blocks of a pool's workers are noted.
type Index interface {
	// Part is a worker's rank's part of it.
	Part(worker string, rank int) view.Part
	// Drop forgets a worker, with all that its ranks held.
	Drop(worker string)
}

// Subscriber keeps the indexes in step with what workers publish. It follows the workers given to [Subscriber.Track], and
// counts and drops the messages of others: a source that is tracked later begins with a snapshot.
//
// One goroutine, Run's, takes every message and feeds every index, so that each source's events apply in order and
// nothing is locked while they do. When it is too slow, NATS drops messages, and engines that publish over ZMQ drop them
// at their high-water mark; the numbers show both.
type Subscriber struct {
	cfg      Config
	bus      wire.Bus
	indexFor func(pool string) Index
	log      *slog.Logger
	metrics  *counters

	messages chan *nats.Msg
	arrivals chan arrival // over ZMQ; it holds none, so that what waits stays in the sockets
	fetched  chan fetched
	kick     chan struct{}  // holds at most one: wanted changed
	asked    chan *question // of other gateways
	joined   chan []string  // the subjects of the other gateways, once

	mu        sync.Mutex            // guards all below; Run alone changes followers
	wanted    map[workerKey]tracked // what Track and Untrack said last
	lives     uint64                // so many lives of workers were tracked
	followers map[string]follower   // by events subject

	// Run's own.
	rng     *rand.Rand
	batch   wire.Batch
	links   map[*engine]context.CancelFunc // over ZMQ
	awaited map[int]*awaiting              // by port
	linked  sync.WaitGroup
	fetches sync.WaitGroup
	active  int
	dropped int
	timer   *time.Timer
	reach   reach
	peers   *peers
}

type workerKey struct{ pool, worker string }

// tracked is how a worker is to be followed. ranks is never changed.
type tracked struct {
	ranks     []int
	blockSize int
	capacity  int         // blocks of each rank; 0: not known
	zmq       zmq.Address // where it has an Endpoint; else it is followed over NATS
	life      uint64      // another one after each Untrack
}

// New returns a Subscriber that follows no worker yet. bus may be nil where all is over ZMQ. indexFor gives the index of a
// pool by its name ("model/role"), the same one each time; Run calls it. reg may be nil. The error is the config's.
func New(
	cfg Config, bus wire.Bus, indexFor func(pool string) Index, log *slog.Logger, reg prometheus.Registerer,
) (*Subscriber, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("KV events subscriber: %w", err)
	}
	cfg.PageTimeout = cmp.Or(cfg.PageTimeout, 2*time.Second)
	cfg.RetryMin = cmp.Or(cfg.RetryMin, 200*time.Millisecond)
	cfg.RetryMax = max(cmp.Or(cfg.RetryMax, 5*time.Second), cfg.RetryMin)
	cfg.SnapshotEvery = cmp.Or(cfg.SnapshotEvery, 10*time.Second)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 16)
	cfg.MaxSnapshotBytes = cmp.Or(cfg.MaxSnapshotBytes, 256<<20)
	cfg.ReplayTimeout = cmp.Or(cfg.ReplayTimeout, 30*time.Second)
	cfg.SilentAfter = cmp.Or(cfg.SilentAfter, silentAfter)
	cfg.PredictAfter = max(cmp.Or(cfg.PredictAfter, time.Minute), cfg.SilentAfter)
	cfg.Relearn = cmp.Or(cfg.Relearn, 2*time.Minute)
	cfg.QuietCheck = cmp.Or(cfg.QuietCheck, 10*time.Second)
	cfg.ZMQ.MaxMessageBytes = cmp.Or(cfg.ZMQ.MaxMessageBytes, wire.MaxBatchBytes+64<<10) // with its topic
	s := &Subscriber{
		cfg: cfg, bus: bus, indexFor: indexFor, log: log,
		messages: make(chan *nats.Msg, 1024), arrivals: make(chan arrival), fetched: make(chan fetched), kick: make(chan struct{}, 1),
		asked: make(chan *question), joined: make(chan []string), peers: newPeers(cfg.Group),
		wanted: map[workerKey]tracked{}, followers: map[string]follower{}, links: map[*engine]context.CancelFunc{},
		awaited: map[int]*awaiting{},
		rng:     rand.New(rand.NewPCG(cfg.Seed, 0)),
	}
	s.metrics = newMetrics(reg, s.Sources)
	return s, nil
}

// Track follows a worker's ranks, beginning with their snapshots. blockSize is the router's in that pool, in tokens, 1 to
// 65,535. kvBlocks is how many such blocks one rank registered, 0 for not known: a rank that names many times as many is
// [Predicted]. For a worker that is followed already it changes what differs. It does not wait, and may be called before
// Run. While a worker is followed only the Subscriber may drop it from the index. Without a bus it does nothing.
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

// Untrack follows a worker no more: its view goes, and all that the pool's index has of it, also where Track follows at
// once. It does not wait.
func (s *Subscriber) Untrack(pool, worker string) {
	s.mu.Lock()
	delete(s.wanted, workerKey{pool, worker})
	s.mu.Unlock()
	s.poke()
}

// Sources returns the state of each source that is followed, by pool, worker and rank.
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

// Source returns the state of one source; ok is false where it is not followed.
func (s *Subscriber) Source(source wire.Source) (status SourceStatus, ok bool) {
	s.mu.Lock()
	f := s.followers[source.EventsSubject()]
	s.mu.Unlock()
	if f == nil {
		return SourceStatus{}, false
	}
	return f.base().status(), true
}

// Run follows until ctx ends, when it returns nil. It may be called once. Its error is that the bus cannot be
// subscribed to.
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
		if !contain.Do(s.log, "kv_events", func() { s.step(ctx, look.C, drops) }) {
			contain.Do(s.log, "kv_events", func() { s.renew(ctx) })
		}
	}
	return nil
}

// subscribe has what comes over NATS put into messages.
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
	stopBeats, err := s.bus.Subscribe(wire.AllBeats, handle, func(int) {}) // the next one makes up for one that is dropped
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

// reconcile makes the followers those that are wanted.
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

	// A worker is dropped from the index as a whole, so a rank that goes or changes takes its siblings along.
	again := map[workerKey]bool{}
	for subject, f := range old {
		is := f.base()
		if t, ok := how[subject]; !ok || t.blockSize != is.how.blockSize || t.zmq != is.how.zmq || t.capacity != is.how.capacity || t.life != is.how.life {
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
		f = newEngine(is)
	} else {
		f = newPublished(is)
	}
	is.heard = time.Now()
	is.restoring = s.peers.mayRestore(is.heard)
	is.onState = func(was, now State) { s.report(f, was, now) }
	return f
}

// take hands one message to the rank it is of and reports whether a repair is wanted because of it.
func (s *Subscriber) take(m *nats.Msg, now time.Time) bool {
	subject, beat := wire.EventsOfBeat(m.Subject)
	if !beat {
		subject = m.Subject
	}
	p, ok := s.followers[subject].(*published)
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
