package events

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

	"github.com/tandem-pd/tandem/router/events/zmtp"
	"github.com/tandem-pd/tandem/router/index"
)

// SubscriberConfig is how a [Subscriber] works. The zero value of each field means its default.
type SubscriberConfig struct {
	// Seed of the jitter between attempts.
	Seed uint64
	// PageTimeout is how long one page of a snapshot may take, by default 2 s.
	PageTimeout time.Duration
	// RetryMin and RetryMax bound the time between attempts to get a snapshot, by default 200 ms and 5 s. It doubles
	// from one to the next, less a part by chance.
	RetryMin, RetryMax time.Duration
	// SnapshotEvery is the least time between two snapshots of one source that are asked for although no message is
	// missing (a block follows on an unknown one, say), by default 10 s.
	SnapshotEvery time.Duration
	// Concurrency is how many snapshots are fetched at once, by default 16.
	Concurrency int
	// MaxSnapshotBytes bounds one snapshot, or one replay, by default 256 MiB.
	MaxSnapshotBytes int
	// ReplayTimeout is how long one replay may take in all, by default 30 s, and PageTimeout between two of its messages.
	ReplayTimeout time.Duration
	// QuietCheck is after how long without a message an engine with a replay socket is asked for what comes after the
	// last, by default 10 s: over ZMQ nothing else shows that a last message was lost.
	QuietCheck time.Duration
	// SilentAfter is how long nothing may be heard of a source over NATS, which speaks every second, before it is
	// [Silent], by default 5 s. It is also while the bus says that it is not connected, if the bus can say so by a
	// method Connected() bool.
	SilentAfter time.Duration
	// PredictAfter is how long nothing may be heard of it while the bus is connected before it is [Predicted], by
	// default one minute, at least SilentAfter.
	PredictAfter time.Duration
	// Relearn is how long an engine whose events were lost must have told again what it uses for the view to be relied on,
	// by default 2 min. As long as the router predicts is right: a view that is older knows more.
	Relearn time.Duration
	// OnState is called by Run when the state or the epoch of a source has changed, as Sources then tells it. It must not
	// wait.
	OnState func()
	// ZMQ is how engines are connected to that publish by themselves. A message may have [MaxBatchBytes] by default.
	ZMQ zmtp.Options

	tap tap // hears what is done to the views; nil for nobody
}

// Validate names the first field that is out of range.
func (c *SubscriberConfig) Validate() error {
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

// Subscriber keeps the indexes in step with what workers publish. It follows the workers it is told to
// [Subscriber.Track]; messages of others are counted and let go, because a source that is tracked later begins with a
// snapshot anyway.
//
// One goroutine, Run's, takes every message and feeds every index, so that each source's events apply in order and
// nothing is locked while they do. When it is too slow, NATS drops messages, and engines that publish over ZMQ drop them
// at their high-water mark; the numbers show both.
type Subscriber struct {
	cfg      SubscriberConfig
	bus      Bus
	indexFor func(pool string) *index.Index
	log      *slog.Logger
	metrics  *metrics

	messages chan *nats.Msg
	arrivals chan arrival // over ZMQ; it holds none, so that what waits stays in the sockets
	fetched  chan fetched
	kick     chan struct{} // holds at most one: wanted changed

	mu        sync.Mutex            // guards all below; Run alone changes followers
	wanted    map[workerKey]tracked // what Track and Untrack said last
	followers map[string]*follower  // by events subject

	// Run's own.
	rng     *rand.Rand
	batch   Batch
	links   map[*follower]context.CancelFunc // over ZMQ
	awaited map[int]*awaiting                // by port
	linked  sync.WaitGroup
	fetches sync.WaitGroup
	active  int
	dropped int
	timer   *time.Timer
	reach   reach
}

type workerKey struct{ pool, worker string }

// tracked is how a worker is to be followed. ranks is never changed.
type tracked struct {
	ranks     []int
	blockSize int
	capacity  int // blocks of each rank; 0: not known
	zmq       ZMQ // where it has an Endpoint; else it is followed over NATS
}

// fetched is the end of an attempt to get a snapshot, or a replay.
type fetched struct {
	follower *follower
	asked    horizon
	turn     uint64 // of a replay: the turn when it was asked for
	last     uint64 // of a replay: the number then known
	answer   answer
	replay   []numbered
	err      error
}

// NewSubscriber returns a Subscriber that follows nobody yet. bus may be nil where all is over ZMQ. indexFor gives the index of a pool by its name
// ("model/role"), the same one each time; it is called by Run. reg may be nil. The error is the config's.
func NewSubscriber(
	cfg SubscriberConfig, bus Bus, indexFor func(pool string) *index.Index, log *slog.Logger, reg prometheus.Registerer,
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
	cfg.ZMQ.MaxMessageBytes = cmp.Or(cfg.ZMQ.MaxMessageBytes, MaxBatchBytes+64<<10) // with its topic
	s := &Subscriber{
		cfg: cfg, bus: bus, indexFor: indexFor, log: log,
		messages: make(chan *nats.Msg, 1024), arrivals: make(chan arrival), fetched: make(chan fetched), kick: make(chan struct{}, 1),
		wanted: map[workerKey]tracked{}, followers: map[string]*follower{}, links: map[*follower]context.CancelFunc{},
		awaited: map[int]*awaiting{},
		rng:     rand.New(rand.NewPCG(cfg.Seed, 0)),
	}
	s.metrics = newMetrics(reg, s.Sources)
	return s, nil
}

// Track follows a worker's ranks from now on: their snapshots are asked for, because their events may have begun long
// ago. blockSize is the router's in that pool, in tokens, 1 to 65,535, and kvBlocks how many such blocks one rank registered, 0 where
// that is not known: a rank that names many times as many is [Predicted]. Of a worker that is followed already it changes
// what differs. It does not wait, and may be called before Run. While a worker is followed nobody else may drop it from
// the index. Without a bus nobody is followed.
func (s *Subscriber) Track(pool, worker string, ranks []int, blockSize, kvBlocks int) {
	if s.bus == nil {
		return
	}
	s.track(workerKey{pool, worker}, tracked{ranks: slices.Clone(ranks), blockSize: blockSize, capacity: kvBlocks})
}

func (s *Subscriber) track(key workerKey, t tracked) {
	s.mu.Lock()
	s.wanted[key] = t
	s.mu.Unlock()
	s.poke()
}

// Untrack follows a worker no more: its view goes, and all that the pool's index has of it. It does not wait.
func (s *Subscriber) Untrack(pool, worker string) {
	s.mu.Lock()
	delete(s.wanted, workerKey{pool, worker})
	s.mu.Unlock()
	s.poke()
}

// Sources says how it stands with each source that is followed, by pool, worker and rank.
func (s *Subscriber) Sources() []SourceStatus {
	s.mu.Lock()
	all := make([]SourceStatus, 0, len(s.followers))
	for _, f := range s.followers {
		all = append(all, f.status())
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b SourceStatus) int {
		return cmp.Or(cmp.Compare(a.Source.Pool, b.Source.Pool), cmp.Compare(a.Source.Worker, b.Source.Worker),
			cmp.Compare(a.Source.Rank, b.Source.Rank))
	})
	return all
}

// Source says how it stands with one source; ok is false where it is not followed.
func (s *Subscriber) Source(source Source) (status SourceStatus, ok bool) {
	s.mu.Lock()
	f := s.followers[source.EventsSubject()]
	s.mu.Unlock()
	if f == nil {
		return SourceStatus{}, false
	}
	return f.status(), true
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
	look := make(<-chan time.Time)
	if s.bus != nil {
		ticker := time.NewTicker(min(time.Second, s.cfg.SilentAfter/4+1))
		defer ticker.Stop()
		look = ticker.C
	}
	s.reconcile(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-s.messages:
			if s.take(m, time.Now()) {
				s.schedule(ctx, time.Now())
			}
		case a := <-s.arrivals:
			if s.arrive(a, time.Now()) {
				s.schedule(ctx, time.Now())
			}
		case f := <-s.fetched:
			s.finish(f, time.Now())
			s.schedule(ctx, time.Now())
		case <-s.kick:
			s.reconcile(ctx)
			s.schedule(ctx, time.Now())
		case <-s.timer.C:
			s.schedule(ctx, time.Now())
		case now := <-look:
			s.listen(now)
			s.schedule(ctx, now)
		case dropped := <-drops:
			s.metrics.dropped.Add(float64(max(0, dropped-s.dropped)))
			s.dropped = dropped
			s.log.Warn("KV events come faster than they are applied; snapshots will mend it", "dropped", dropped)
		}
	}
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
	stopBeats, err := s.bus.Subscribe(AllBeats, handle, func(int) {}) // the next one makes up for one that is dropped
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", AllBeats, err)
	}
	stopEvents, err := s.bus.Subscribe(AllEvents, handle, func(dropped int) {
		select {
		case drops <- dropped:
		case <-ctx.Done():
		}
	})
	if err != nil {
		stopBeats()
		return nil, fmt.Errorf("subscribe to %s: %w", AllEvents, err)
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
	wanted := make(map[string]Source)
	how := make(map[string]tracked)
	for key, t := range s.wanted {
		for _, rank := range t.ranks {
			source := Source{key.pool, key.worker, rank}
			wanted[source.EventsSubject()] = source
			how[source.EventsSubject()] = t
		}
	}
	old := s.followers
	s.mu.Unlock()

	// A worker is dropped from the index as a whole, so a rank that goes or changes takes its siblings along.
	again := map[workerKey]bool{}
	for subject, f := range old {
		if t, ok := how[subject]; !ok || t.blockSize != f.view.blockSize || t.zmq != f.zmq || t.capacity != f.view.bound.registered {
			again[workerKey{f.source.Pool, f.source.Worker}] = true
		}
	}
	for key := range again {
		s.indexFor(key.pool).Drop(key.worker)
	}
	next := make(map[string]*follower, len(wanted))
	for subject, source := range wanted {
		if f, ok := old[subject]; ok && !again[workerKey{source.Pool, source.Worker}] {
			next[subject] = f
			continue
		}
		f := newFollower(source, s.indexFor(source.Pool), how[subject].blockSize, how[subject].capacity, &s.batch, s.metrics.pool(source.Pool))
		f.heard, f.tap = time.Now(), s.cfg.tap
		f.onState = func(was, is State) { s.tell(f, was, is) }
		if t := how[subject]; t.zmq.Endpoint != "" {
			f.zmq, f.trail = t.zmq, &trail{replays: t.zmq.Replay != "", capacity: t.capacity, relearns: s.cfg.Relearn}
		}
		next[subject] = f
	}
	s.mu.Lock()
	s.followers = next
	s.mu.Unlock()
	s.relink(ctx)
}

// take puts one message where it belongs and reports whether a snapshot is wanted because of it.
func (s *Subscriber) take(m *nats.Msg, now time.Time) bool {
	subject, beat := beatsOf(m.Subject)
	if !beat {
		subject = m.Subject
	}
	f := s.followers[subject]
	if f == nil || f.trail != nil || beat && len(m.Data) > 0 {
		s.metrics.untracked.Inc()
		return false
	}
	epoch, seq, err := numbers(m.Header)
	if err != nil {
		s.metrics.untracked.Inc()
		s.log.Debug("KV event message without numbers", "source", f.source, "error", err)
		return false
	}
	at := positionOf(m.Header)
	if f.superseded(epoch, at, len(m.Data) == 0) {
		f.count.verdicts[Stale].Inc()
		return false
	}
	f.claims = partialOf(m.Header)
	wanted := f.message(epoch, seq, m.Data, now, s.cfg.SnapshotEvery)
	f.reached(epoch, at)
	return wanted
}
