package follow

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

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// BridgeConfig configures a [Bridge].
type BridgeConfig struct {
	// Pool ("model/role") and Worker name the published source.
	Pool, Worker string
	// Ranks is how many data-parallel ranks the engine has, at least 1.
	Ranks int
	// BlockSize is the engine's, in tokens. KVBlocks is the blocks of one rank's cache; with 0, unknown, only a restart
	// or a cleared cache ends a loss.
	BlockSize, KVBlocks int
	// From is the engine's publisher.
	From zmq.Address
	// Follow configures the subscription to the engine.
	Follow Config
	// Publish configures the publisher; the Bridge sets Source and Epoch.
	Publish view.PublisherConfig
	// OnRestart runs when a rank's engine has restarted, with the time when the old connection was lost. It must not
	// block.
	OnRestart func(lost time.Time)
}

// Bridge forwards an engine's own KV events to NATS. It follows each rank over ZMQ and republishes the events with a
// [view.Publisher]. After a loss the messages carry [wire.HeaderPartial] until the rank's state is complete again.
type Bridge struct {
	cfg   BridgeConfig
	bus   wire.Bus
	log   *slog.Logger
	sub   *Subscriber
	ranks []*lane
	most  int // blocks mirrored per rank
	runs  sync.WaitGroup
	ctx   context.Context // Run's
}

// lane is one rank of a Bridge.
type lane struct {
	source wire.Source
	pub    atomic.Pointer[view.Publisher]
	end    func() // stops pub's Run and waits; Run's own

	unsure             atomic.Bool // the published state is incomplete; see HeaderPartial
	restarts, failures atomic.Uint64
	sent, failed       atomic.Uint64 // messages of publishers before pub
}

// BridgeStatus is the state of one rank.
type BridgeStatus struct {
	From             SourceStatus // the rank as the Bridge follows it
	Epoch, Seq       uint64       // of the last message to NATS
	Blocks           int          // of the engine's, in the snapshot for subscribers
	Messages, Failed uint64       // to NATS, heartbeats and snapshots included; rejected by it
	Restarts         uint64       // of the engine
	Partial          bool         // the events are marked as incomplete
}

// NewBridge returns a Bridge that is not running. reg may be nil.
func NewBridge(cfg BridgeConfig, bus wire.Bus, log *slog.Logger, reg prometheus.Registerer) (*Bridge, error) {
	if cfg.Ranks < 1 || cfg.BlockSize < 1 || cfg.KVBlocks < 0 || bus == nil {
		return nil, errors.New("KV events bridge: ranks and block size must be above 0, and there must be a bus")
	}
	b := &Bridge{cfg: cfg, bus: bus, log: log, most: view.MostBlocks(cfg.KVBlocks)}
	following := cfg.Follow
	following.Tap = b
	b.sub = New(following, nil, func(string) Index { return nowhere{} }, log, reg)
	ranks := make([]int, cfg.Ranks)
	for i := range ranks {
		ranks[i] = i
		l := &lane{source: wire.Source{Pool: cfg.Pool, Worker: cfg.Worker, Rank: i}, end: func() {}}
		l.unsure.Store(true) // no message yet
		b.ranks = append(b.ranks, l)
		if err := b.publisher(l); err != nil {
			return nil, err
		}
	}
	if err := b.sub.TrackZMQ(cfg.Pool, cfg.Worker, ranks, cfg.BlockSize, cfg.KVBlocks, cfg.From); err != nil {
		return nil, fmt.Errorf("KV events bridge: %w", err)
	}
	export(reg, b.Status)
	return b, nil
}

// Run forwards events until ctx ends, then returns nil. It may be called once.
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

// Status returns the state of each rank, in order.
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
			Messages: l.sent.Load() + stats.Messages, Failed: l.failed.Load() + stats.Failed,
			Restarts: l.restarts.Load(), Partial: l.unsure.Load(),
		}
		s.From.Source = l.source
		all = append(all, s)
	}
	return all
}

// Settled reports whether every rank is either live or known to have lost events.
func (b *Bridge) Settled() bool {
	sources := b.sub.Sources()
	return len(sources) == len(b.ranks) && !slices.ContainsFunc(sources, func(s SourceStatus) bool {
		return s.State != Live && s.State != Predicted
	})
}

// publisher replaces a rank's publisher, with a new epoch and nothing stored.
func (b *Bridge) publisher(l *lane) error {
	cfg := b.cfg.Publish
	cfg.Source, cfg.Epoch, cfg.Partial = l.source, 0, l.unsure.Load()
	p, err := view.NewPublisher(cfg, b.bus, b.log)
	if err != nil {
		return err
	}
	l.pub.Store(p)
	return nil
}

// start runs a rank's publisher until l.end is called or Run ends.
func (b *Bridge) start(l *lane) {
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	p := l.pub.Load()
	b.runs.Go(func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			b.log.Warn("requests for KV snapshots cannot be received", "source", l.source, "error", err)
		}
	})
	l.end = func() { cancel(); <-done }
}

// Began implements follow.Tap: a new epoch makes subscribers empty their views.
func (b *Bridge) Began(s wire.Source) {
	l := b.ranks[s.Rank]
	old := l.pub.Load()
	stats := old.Stats()
	if stats.Seq == 0 {
		return // nothing published to take back
	}
	l.end() // before the new one subscribes: only one may answer
	stats = old.Stats()
	l.sent.Add(stats.Messages)
	l.failed.Add(stats.Failed)
	if err := b.publisher(l); err != nil {
		panic(err) // the same config was good
	}
	b.start(l)
}

// Restarted implements follow.Tap.
func (b *Bridge) Restarted(s wire.Source, cut time.Time) {
	b.ranks[s.Rank].restarts.Add(1)
	b.log.Info("engine restarted: its KV events are published under a new epoch", "source", s)
	if b.cfg.OnRestart != nil {
		b.cfg.OnRestart(cut)
	}
}

// Lost implements follow.Tap: subscribers empty their views and count what follows as incomplete.
func (b *Bridge) Lost(s wire.Source) {
	l := b.ranks[s.Rank]
	l.unsure.Store(true)
	p := l.pub.Load()
	p.SetPartial(true)
	b.publish(l, p, []wire.Event{{Kind: wire.Cleared}})
}

// Applied implements follow.Tap.
func (b *Bridge) Applied(s wire.Source, events []wire.Event) {
	l := b.ranks[s.Rank]
	p := l.pub.Load()
	b.publish(l, p, events)
	if p.Blocks() > b.most { // removed parents are kept: more than the cache can hold
		b.Lost(s)
	}
}

// StateChanged implements follow.Tap: events are incomplete before the first message and after a loss.
func (b *Bridge) StateChanged(s wire.Source, state State) {
	l := b.ranks[s.Rank]
	l.unsure.Store(state == Waiting || state == Predicted)
	l.pub.Load().SetPartial(l.unsure.Load())
}

func (b *Bridge) publish(l *lane, p *view.Publisher, events []wire.Event) {
	if err := p.Publish(events); err != nil {
		if l.failures.Add(1) == 1 {
			b.log.Warn("KV events not published: subscribers will see a gap and request a snapshot", "source", l.source, "error", err)
		}
		return
	}
	l.failures.Store(0)
}

// nowhere is a Bridge's index and stores nothing: only the views' counts are used.
type nowhere struct{}

func (nowhere) Part(string, int) index.Part { return index.Discard }
func (nowhere) Drop(string)                 {}
