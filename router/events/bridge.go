package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/router/index"
)

// BridgeConfig is how a [Bridge] works.
type BridgeConfig struct {
	// Pool ("model/role") and Worker are the names under which the events are told.
	Pool, Worker string
	// Ranks is how many data-parallel ranks the engine has, at least 1.
	Ranks int
	// BlockSize is the engine's, in tokens, and KVBlocks how many of its blocks the cache of one rank has, 0 where that is not
	// known: then a loss is only mended by a restart or a cleared cache.
	BlockSize, KVBlocks int
	// From is where the engine publishes.
	From ZMQ
	// Follow is how the engine is followed. Its OnState is called here as it is there.
	Follow SubscriberConfig
	// Tell is how what it says is told on; Source and Epoch are the Bridge's own.
	Tell PublisherConfig
	// OnRestart is called by Run when a rank is found to be another process than the one before, with the time at which the
	// connection to that one was lost. It must not wait.
	OnRestart func(lost time.Time)
}

// Bridge carries an engine's own KV events on to NATS. It follows each rank over ZMQ, by its numbers and replays, and tells
// it as a [Publisher] does, with epochs, heartbeats and snapshots. What cannot be had of the engine is said: until its state
// is known again the messages carry [HeaderPartial].
type Bridge struct {
	cfg   BridgeConfig
	bus   Bus
	log   *slog.Logger
	sub   *Subscriber
	ranks []*lane
	most  int // blocks that a rank is mirrored with
	runs  sync.WaitGroup
	ctx   context.Context // Run's
}

// lane is one rank of a Bridge.
type lane struct {
	source Source
	pub    atomic.Pointer[Publisher]
	end    func() // ends pub's Run and awaits it; Run's own

	unsure             atomic.Bool // what is told is not all; see HeaderPartial
	restarts, failures atomic.Uint64
	told, failed       atomic.Uint64 // messages of publishers before pub
}

// BridgeStatus is how it stands with one rank.
type BridgeStatus struct {
	// From is the stream from the engine, as the Bridge follows it.
	From SourceStatus
	// Epoch and Seq are those of the last message to NATS.
	Epoch, Seq uint64
	// Blocks of the engine's are in the snapshot that subscribers are given.
	Blocks int
	// Messages went to NATS, heartbeats and snapshots included; Failed of them it did not take.
	Messages, Failed uint64
	// Restarts counts how often the engine began anew.
	Restarts uint64
	// Partial says that subscribers are told not to rely on it.
	Partial bool
}

// NewBridge returns a Bridge that has not begun. reg may be nil. The error is the config's.
func NewBridge(cfg BridgeConfig, bus Bus, log *slog.Logger, reg prometheus.Registerer) (*Bridge, error) {
	if cfg.Ranks < 1 || cfg.BlockSize < 1 || cfg.KVBlocks < 0 || bus == nil {
		return nil, errors.New("KV events bridge: ranks and block size must be above 0, and there must be a bus")
	}
	b := &Bridge{cfg: cfg, bus: bus, log: log, most: unregisteredBound}
	if cfg.KVBlocks > 0 {
		b.most = max(offloadedShare*cfg.KVBlocks, leastBound)
	}
	follow := cfg.Follow
	follow.tap = b
	// The index is there for what a View counts beside: blocks that nobody knows tell when a rank is whole again.
	idx := index.New(index.Config{})
	var err error
	if b.sub, err = NewSubscriber(follow, nil, func(string) *index.Index { return idx }, log, reg); err != nil {
		return nil, fmt.Errorf("KV events bridge: %w", err)
	}
	ranks := make([]int, cfg.Ranks)
	for i := range ranks {
		ranks[i] = i
		l := &lane{source: Source{cfg.Pool, cfg.Worker, i}, end: func() {}}
		l.unsure.Store(true) // nothing was heard
		b.ranks = append(b.ranks, l)
		if err := b.publisher(l); err != nil {
			return nil, err
		}
	}
	if err := b.sub.TrackZMQ(cfg.Pool, cfg.Worker, ranks, cfg.BlockSize, cfg.KVBlocks, cfg.From); err != nil {
		return nil, fmt.Errorf("KV events bridge: %w", err)
	}
	if reg != nil {
		reg.MustRegister(bridgeCollector(b.Status))
	}
	return b, nil
}

// Run carries until ctx ends, when it returns nil. It may be called once.
func (b *Bridge) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer b.runs.Wait()
	defer cancel()
	b.ctx = ctx
	for _, l := range b.ranks {
		b.start(l)
	}
	return b.sub.Run(ctx)
}

// Status says how it stands with each rank, in their order.
func (b *Bridge) Status() []BridgeStatus {
	from := map[int]SourceStatus{}
	for _, s := range b.sub.Sources() {
		from[s.Source.Rank] = s
	}
	all := make([]BridgeStatus, 0, len(b.ranks))
	for _, l := range b.ranks {
		p := l.pub.Load()
		stats := p.Stats()
		s := BridgeStatus{
			From: from[l.source.Rank], Epoch: p.Epoch(), Seq: stats.Seq, Blocks: stats.Blocks,
			Messages: l.told.Load() + stats.Messages, Failed: l.failed.Load() + stats.Failed,
			Restarts: l.restarts.Load(), Partial: l.unsure.Load(),
		}
		s.From.Source = l.source
		all = append(all, s)
	}
	return all
}

// Settled reports whether it is known of every rank how it stands: that it is followed, or that it cannot be.
func (b *Bridge) Settled() bool {
	sources := b.sub.Sources()
	return len(sources) == len(b.ranks) && !slices.ContainsFunc(sources, func(s SourceStatus) bool {
		return s.State != Live && s.State != Predicted
	})
}

// publisher gives a rank a new one: another epoch, and nothing stored.
func (b *Bridge) publisher(l *lane) error {
	tell := b.cfg.Tell
	tell.Source, tell.Epoch = l.source, 0
	p, err := NewPublisher(tell, b.bus, b.log)
	if err != nil {
		return err
	}
	p.partial.Store(l.unsure.Load())
	l.pub.Store(p)
	return nil
}

// start has a rank's publisher answer, until l.end is called or Run ends.
func (b *Bridge) start(l *lane) {
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	p := l.pub.Load()
	b.runs.Go(func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			b.log.Warn("KV snapshots cannot be asked for", "source", l.source, "error", err)
		}
	})
	l.end = func() { cancel(); <-done }
}

// began implements tap: what is told begins anew with it, so that subscribers empty their views.
func (b *Bridge) began(s Source) {
	l := b.ranks[s.Rank]
	old := l.pub.Load()
	stats := old.Stats()
	if stats.Seq == 0 {
		return // nothing was said yet that would have to be taken back
	}
	l.end() // before the new one listens: only one may answer
	stats = old.Stats()
	l.told.Add(stats.Messages)
	l.failed.Add(stats.Failed)
	if err := b.publisher(l); err != nil {
		panic(err) // the same config was good
	}
	b.start(l)
}

// restarted implements tap.
func (b *Bridge) restarted(s Source, cut time.Time) {
	b.ranks[s.Rank].restarts.Add(1)
	b.log.Info("the engine began anew: its KV events are told under a new epoch", "source", s)
	if b.cfg.OnRestart != nil {
		b.cfg.OnRestart(cut)
	}
}

// lost implements tap: subscribers empty their views and are told not to rely on what follows.
func (b *Bridge) lost(s Source) {
	l := b.ranks[s.Rank]
	l.unsure.Store(true)
	p := l.pub.Load()
	p.SetPartial(true)
	b.tell(l, p, []Event{{Kind: Cleared}})
}

// applied implements tap.
func (b *Bridge) applied(s Source, events []Event) {
	l := b.ranks[s.Rank]
	p := l.pub.Load()
	b.tell(l, p, events)
	if p.Blocks() > b.most { // removed blocks are kept that others follow on: more than there can be
		b.lost(s)
	}
}

// stands implements tap: as long as nothing was heard, or something is missing, what is told is not all.
func (b *Bridge) stands(s Source, state State) {
	l := b.ranks[s.Rank]
	l.unsure.Store(state == Waiting || state == Predicted)
	l.pub.Load().SetPartial(l.unsure.Load())
}

func (b *Bridge) tell(l *lane, p *Publisher, events []Event) {
	if err := p.Publish(events); err != nil {
		if l.failures.Add(1) == 1 {
			b.log.Warn("KV events not published: subscribers will see a gap and ask for a snapshot", "source", l.source, "error", err)
		}
		return
	}
	l.failures.Store(0)
}

// tap hears what a [Subscriber] does to its views, in order and from its Run.
type tap interface {
	// began: the view is empty, because another process is followed, or the same one from its first message on.
	began(Source)
	// restarted: it was another process; the connection to the one before was lost at cut. It comes after began.
	restarted(s Source, cut time.Time)
	// lost: the view was emptied because something is missing.
	lost(Source)
	// applied: these events were put into the view. They are only good during the call.
	applied(Source, []Event)
	// stands: the state is another than before.
	stands(Source, State)
}
