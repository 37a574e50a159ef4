package replica

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// The shell's times.
const (
	// tail is how long a release may be batched with the next booking. Until then the others see less room than there
	// is, never more.
	tail = 5 * time.Millisecond
	// tick is how often silence and gaps are checked.
	tick = 50 * time.Millisecond
	// joinTick is how often a starting gateway checks whether it is ready.
	joinTick = 2 * time.Millisecond
	// answer bounds the wait for a page.
	answer = 250 * time.Millisecond
)

// Link carries the group's messages.
type Link interface {
	wire.Bus
	// Connected reports whether messages pass.
	Connected() bool
}

// Rooms are what a member shares, and its callbacks.
type Rooms struct {
	Routers *router.Set
	// Pool returns a model's workers of a role, empty for none.
	Pool func(model string, role pools.Role) *pools.Pool
	// Wake runs when other gateways released bookings of a model: waiting requests may fit.
	Wake func(model string)
	// Warn runs when the circuit of a worker opened at another gateway.
	Warn func(worker string, leg pools.Role)
	// Heads returns the first waiting requests with a strict priority, by model. ApplyHeads replaces the heads of another
	// gateway's queue of a model, and must not retain them or wake the queue. It reports whether to wake the queue.
	Heads      func() map[string][]queue.Head
	ApplyHeads func(gateway, model string, heads []queue.Head) (wake bool)
	// SetReplicaCount runs when the size of the group changes. It may be nil.
	SetReplicaCount func(gateways int)
	// Addr returns the HOST:PORT that the others reach this gateway at, behind https:// if it serves TLS only.
	Addr func() string
	// Answer returns the answer to an operator's query of another gateway, at most MaxAnswer bytes. It must be quick; nil
	// answers none.
	Answer func(question string) []byte
}

// Member is a gateway in its group; nil is a gateway without a group. It is safe for concurrent use.
type Member struct {
	cfg   MemberConfig
	link  Link
	rooms Rooms
	log   *slog.Logger

	alone  atomic.Bool   // no other gateway in the group: bookings need not be sent at once
	made   atomic.Int64  // bookings not counted yet
	ended  atomic.Bool   // the timer of tail runs
	wake   chan struct{} // a message is due
	head   chan struct{} // heads changed
	tail   *time.Timer
	ready  atomic.Bool
	joined chan struct{} // closed with ready
	named  chan struct{} // closed once own is set
	cutOff atomic.Bool
	leaves atomic.Int32          // ticks for which releases are sent at once: a request waits at another gateway
	sight  atomic.Pointer[sight] // nil at first
	calls  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	own     *Local
	peers   *Peers   // nil before Run
	woken   []string // models whose queues to wake
	do      []Effect
	began   time.Time
	stopped bool // Run has ended
}

// NewMember returns a member that has not joined. It is the routers' [router.Config.Peers], and its Booked their
// OnBooking. Call Share before Run.
func NewMember(cfg MemberConfig, link Link, log *slog.Logger) *Member {
	m := &Member{
		joined: make(chan struct{}), named: make(chan struct{}),
		cfg: cfg, link: link, log: log, wake: make(chan struct{}, 1), head: make(chan struct{}, 1),
	}
	m.ready.Store(cfg.Join == 0)
	m.tail = time.AfterFunc(time.Hour, m.poke)
	m.tail.Stop()
	return m
}

// Share sets what the member shares.
func (m *Member) Share(rooms Rooms) { m.rooms = rooms }

// Booked notes that a booking was made, or that one ended or changed.
func (m *Member) Booked(made bool) {
	switch {
	case m == nil:
	case made:
		m.made.Add(1)
		if !m.alone.Load() {
			m.poke()
		}
	case m.leaves.Load() > 0:
		m.poke()
	case !m.alone.Load() && !m.ended.Swap(true):
		m.tail.Reset(tail)
	}
}

// Opened notes that the circuit of a model's worker opened here.
func (m *Member) Opened(model, worker string, leg pools.Role) {
	if m == nil || m.alone.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own != nil {
		m.own.Opened(Slot{Model: model, Worker: worker, Role: leg})
		m.poke()
	}
}

// HeadsChanged notes that the heads of this gateway's queues may have changed.
func (m *Member) HeadsChanged() {
	if m != nil && !m.alone.Load() {
		poke(m.head)
	}
}

func (m *Member) poke() { poke(m.wake) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // already awake
	}
}

// Ready reports whether the others' bookings arrived, or the wait for them is over.
func (m *Member) Ready() bool { return m == nil || m.ready.Load() }

// Wait blocks until Ready, or until Run ends.
func (m *Member) Wait() {
	if !m.Ready() {
		<-m.joined
	}
}

// CutOff reports whether no message of other gateways arrives: NATS is disconnected or the network partitioned.
func (m *Member) CutOff() bool { return m != nil && m.cutOff.Load() }

// Peers returns the other gateways.
func (m *Member) Peers() []Peer {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.peers == nil {
		return nil
	}
	return m.peers.All(time.Now())
}

// Name returns the gateway's name in its group, empty before Run.
func (m *Member) Name() string {
	if m == nil {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own == nil {
		return ""
	}
	return m.own.Name()
}

// token returns the gateway's name in subjects. join must have run.
func (m *Member) token() string { return token(m.own.Name()) }

// join creates the cores.
func (m *Member) join(now time.Time) {
	name := m.cfg.Name
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "gateway"
		}
		name = host + ":" + port(m.rooms.Addr())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = NewLocal(name, Epoch(now, os.Getpid()))
	m.peers, m.began = NewPeers(m.cfg.Config, m.own, (*memberBooks)(m), now), now
	close(m.named)
}

// JoinViews waits until the other gateways are known, for [MemberConfig.Join] at most. It returns this gateway's
// name and the subjects at which it and the others serve views of caches, or nothing when ctx ends first.
func (m *Member) JoinViews(ctx context.Context) (name, own string, others []string) {
	select {
	case <-m.named:
	case <-ctx.Done():
		return "", "", nil
	}
	if !m.Ready() {
		select {
		case <-m.joined:
		case <-ctx.Done():
			return "", "", nil
		}
	}
	for _, p := range m.Peers() {
		others = append(others, m.cfg.views(m.token(), token(p.Name)))
	}
	return m.Name(), m.cfg.views(anyone, m.token()), others
}

// Run shares bookings until ctx ends, and then leaves the group. It may be called once. It fails if the group's
// subjects cannot be subscribed to.
func (m *Member) Run(ctx context.Context) error {
	if m == nil {
		return nil
	}
	m.join(time.Now())
	defer m.tail.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if cancel(); !m.ready.Swap(true) {
			close(m.joined)
		}
		m.mu.Lock() // no call starts after this
		m.stopped = true
		m.mu.Unlock()
		m.calls.Wait()
	}()
	stopDeltas, err := m.link.Subscribe(m.cfg.deltas(anyone), func(msg *nats.Msg) {
		m.receive(ctx, m.cfg.sender(msg.Subject),
			msg.Data)
	}, func(dropped int) {
		m.log.Warn("messages of other gateways dropped: too many; requesting their bookings again", "dropped", dropped)
	})
	if err != nil {
		return fmt.Errorf("replica-group: %w", err)
	}
	defer stopDeltas()
	stopAsked, err := m.link.Subscribe(m.cfg.pageRequests(anyone, m.token()), m.reply, func(int) {})
	if err != nil {
		return fmt.Errorf("replica-group: %w", err)
	}
	defer stopAsked()
	stopQueries, err := m.link.Subscribe(m.cfg.queries(anyone, m.token()), m.respond, func(int) {})
	if err != nil {
		return fmt.Errorf("replica-group: %w", err)
	}
	defer stopQueries()
	m.log.Info("sharing bookings with the group's gateways", "replica_group", m.cfg.Group, "replica", m.own.Name())
	beats, ticks := time.NewTicker(BeatEvery), time.NewTicker(tick)
	defer beats.Stop()
	defer ticks.Stop()
	heads, joins := time.NewTimer(time.Hour), time.NewTicker(joinTick)
	defer heads.Stop()
	defer joins.Stop()
	m.tick(ctx, time.Now())
	m.heartbeat()
	for {
		select {
		case <-ctx.Done():
			m.publishDelta()
			m.publish(m.own.Leave())
			return nil
		case <-m.wake:
			m.publishDelta()
		case <-m.head:
			m.publishHeads(heads)
		case <-heads.C:
			m.publishHeads(heads)
		case <-beats.C:
			m.heartbeat()
		case now := <-ticks.C:
			m.tick(ctx, now)
		case now := <-joins.C:
			if m.becomeReady(now) {
				joins.Stop()
			}
		}
	}
}

// tick runs what is due.
func (m *Member) tick(ctx context.Context, now time.Time) {
	m.with(ctx, func(do []Effect) []Effect {
		do = m.peers.Tick(now, m.link.Connected(), do)
		m.alone.Store(m.peers.Len() == 0)
		if left := m.leaves.Load(); left > 0 {
			m.leaves.Store(left - 1)
		}
		m.look(now)
		repeats := false
		m.rooms.Routers.Each(func(_ string, _ pools.Role, r *router.Router) { repeats = r.ResendNextBindings() || repeats })
		if repeats {
			m.publishDeltaLocked()
		}
		if cutOff := m.peers.CutOff(now); cutOff != m.cutOff.Swap(cutOff) {
			switch {
			case !cutOff && m.peers.Len() == 0:
				m.log.Info("no other gateway in the group")
			case !cutOff:
				m.log.Info("bookings of other gateways received again")
			case m.link.Connected():
				m.log.Warn("no message from any other gateway; bookings made there are unknown")
			default:
				m.log.Warn("NATS disconnected; bookings of other gateways are unknown")
			}
		}
		return do
	})
}

func (m *Member) becomeReady(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ready.Load() && m.peers.Ready(now) {
		m.ready.Store(true)
		close(m.joined)
		m.log.Info("bookings of other gateways received", "gateways", m.peers.Len(), "joined_after", now.Sub(m.began))
	}
	return m.ready.Load()
}

// receive applies a message of another gateway.
func (m *Member) receive(ctx context.Context, sender string, data []byte) {
	m.with(ctx, func(do []Effect) []Effect {
		do, err := m.peers.Receive(sender, data, time.Now(), do)
		if err != nil {
			m.log.Debug("message of another gateway ignored", "error", err)
		}
		return do
	})
}

// with calls f under the lock, carries out its effects, and wakes the queues of models with more room.
func (m *Member) with(ctx context.Context, f func(do []Effect) []Effect) {
	for _, model := range m.locked(ctx, f) {
		m.rooms.Wake(model)
	}
}

// locked calls f, carries out its effects, and returns the models whose queues to wake. A panic in f releases the lock.
func (m *Member) locked(ctx context.Context, f func(do []Effect) []Effect) (woken []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	guard.Do(m.log, "replica", func() {
		m.do = f(m.do[:0])
		for _, e := range m.do {
			m.effect(ctx, e)
		}
	})
	woken, m.woken = m.woken, nil
	return woken
}
