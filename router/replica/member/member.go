package member

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/contain"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// The shell's times.
const (
	// tail is how long the end of a booking may wait to be said with the beginning of another: until then the others
	// know less room than there is, never more.
	tail = 5 * time.Millisecond
	// tick is how often silence and gaps are looked for.
	tick = 50 * time.Millisecond
	// joinTick is how often a gateway that starts looks whether it is ready.
	joinTick = 2 * time.Millisecond
	// answer is how long another gateway has to send a page.
	answer = 250 * time.Millisecond
)

// Link carries the group's messages.
type Link interface {
	wire.Bus
	// Connected reports whether messages pass.
	Connected() bool
}

// Rooms are what a member shares, and whom it wakes.
type Rooms struct {
	Routers *router.Set
	// Pool is a model's workers of a role, empty where there are none.
	Pool func(model string, role pools.Role) *pools.Pool
	// Wake is called where the other gateways hold less of a model's workers than before: who waits may find room.
	Wake func(model string)
	// Warn is called where a worker has failed another gateway so often that its circuit there has opened.
	Warn func(worker string, leg pools.Role)
	// Heads is which requests with a strict priority are the first to wait here, and Hear takes in those of another gateway's queue
	// of a model, to keep nothing of them. It reports whether the queue is to be woken, and must not do so itself.
	Heads func() []replica.Head
	Hear  func(gateway, model string, heads []replica.Head) (wake bool)
	// Among is called with how many gateways the group has, where that changes, unless it is nil.
	Among func(gateways int)
	// Addr is HOST:PORT where this gateway takes requests, as the others reach it; behind https:// where it takes TLS alone.
	Addr func() string
}

// Member is a gateway in its group. A nil one is alone. Its methods may be called concurrently.
type Member struct {
	cfg   Config
	link  Link
	rooms Rooms
	log   *slog.Logger

	alone  atomic.Bool   // in the group: what is booked need not be said at once
	made   atomic.Int64  // bookings that have not been counted
	ended  atomic.Bool   // the tail's timer runs
	wake   chan struct{} // there is something to say
	head   chan struct{} // and of the queues' heads
	tail   *time.Timer
	ready  atomic.Bool
	joined chan struct{} // closed with ready
	named  chan struct{} // closed when own is there
	cutOff atomic.Bool
	leaves atomic.Int32          // ticks for which the end of a booking is said at once: a request of another gateway waits for it
	sight  atomic.Pointer[sight] // nil at first
	calls  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	own     *replica.Own
	peers   *replica.Peers // nil before Run
	woken   []string       // models whose queues are to be woken
	do      []replica.Effect
	began   time.Time
	stopped bool // Run has ended
}

// New returns a member that has not joined. Its Booked is to be the routers' [router.Config.OnBooking].
func New(cfg Config, link Link, rooms Rooms, log *slog.Logger) *Member {
	m := &Member{
		joined: make(chan struct{}), named: make(chan struct{}),
		cfg: cfg, link: link, rooms: rooms, log: log, wake: make(chan struct{}, 1), head: make(chan struct{}, 1),
	}
	m.ready.Store(cfg.Join == 0)
	m.tail = time.AfterFunc(time.Hour, m.poke)
	m.tail.Stop()
	return m
}

// Booked says that a booking was made, or else that one has ended or changed.
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

// Opened says that the circuit of a model's worker has opened here.
func (m *Member) Opened(model, worker string, leg pools.Role) {
	if m == nil || m.alone.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own != nil {
		m.own.Opened(replica.Slot{Model: model, Worker: worker, Role: leg})
		m.poke()
	}
}

// Headed says that the heads of this gateway's queues may have changed.
func (m *Member) Headed() {
	if m != nil && !m.alone.Load() {
		poke(m.head)
	}
}

func (m *Member) poke() { poke(m.wake) }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake
	}
}

// Ready reports whether what the others have booked is known, or has been waited for long enough.
func (m *Member) Ready() bool { return m == nil || m.ready.Load() }

// Wait waits until Ready, or until Run has ended.
func (m *Member) Wait() {
	if !m.Ready() {
		<-m.joined
	}
}

// CutOff reports whether nothing is heard of the other gateways: NATS is away, or the network to it is cut.
func (m *Member) CutOff() bool { return m != nil && m.cutOff.Load() }

// Peers are the other gateways.
func (m *Member) Peers() []replica.Peer {
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

// Counts is what has happened so far.
func (m *Member) Counts() replica.Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.peers == nil {
		return replica.Counts{}
	}
	return m.peers.Counts()
}

// Name is the gateway's in its group; empty before Run.
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

// token is the gateway's name in subjects, once join has made the cores.
func (m *Member) token() string { return token(m.own.Name()) }

// join makes the cores.
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
	m.own = replica.NewOwn(name, replica.Epoch(now, os.Getpid()))
	m.peers, m.began = replica.NewPeers(m.cfg.Config, m.own, (*books)(m), now), now
	close(m.named)
}

// JoinViews waits until the other gateways are known, at most for the time of [replica.Config.Join], and returns the
// subject at which this one is asked for its views of workers' caches, and those of the others. It returns early, with
// nothing, when ctx ends.
func (m *Member) JoinViews(ctx context.Context) (own string, others []string) {
	select {
	case <-m.named:
	case <-ctx.Done():
		return "", nil
	}
	if !m.Ready() {
		select {
		case <-m.joined:
		case <-ctx.Done():
			return "", nil
		}
	}
	for _, p := range m.Peers() {
		others = append(others, m.cfg.views(m.token(), token(p.Name)))
	}
	return m.cfg.views(anyone, m.token()), others
}

// Run shares until ctx ends, and says goodbye. It may be called once. Its error is that the group's subjects cannot be
// subscribed to.
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
		m.mu.Lock() // what runs under it may begin a call yet, what comes later does not
		m.stopped = true
		m.mu.Unlock()
		m.calls.Wait()
	}()
	stopSaid, err := m.link.Subscribe(m.cfg.said(anyone), func(msg *nats.Msg) { m.hear(ctx, m.cfg.sender(msg.Subject), msg.Data) }, func(dropped int) {
		m.log.Warn("messages of other gateways dropped: too many; requesting their bookings again", "dropped", dropped)
	})
	if err != nil {
		return fmt.Errorf("replica-group: %w", err)
	}
	defer stopSaid()
	stopAsked, err := m.link.Subscribe(m.cfg.asked(anyone, m.token()), m.reply, func(int) {})
	if err != nil {
		return fmt.Errorf("replica-group: %w", err)
	}
	defer stopAsked()
	m.log.Info("sharing bookings with the group's gateways", "replica_group", m.cfg.Group, "replica", m.own.Name())
	beats, ticks := time.NewTicker(replica.BeatEvery), time.NewTicker(tick)
	defer beats.Stop()
	defer ticks.Stop()
	heads, joins := time.NewTimer(time.Hour), time.NewTicker(joinTick)
	defer heads.Stop()
	defer joins.Stop()
	m.tick(ctx, time.Now())
	m.beat()
	for {
		select {
		case <-ctx.Done():
			m.say()
			m.publish(m.own.Bye())
			return nil
		case <-m.wake:
			m.say()
		case <-m.head:
			m.sayHeads(heads)
		case <-heads.C:
			m.sayHeads(heads)
		case <-beats.C:
			m.beat()
		case now := <-ticks.C:
			m.tick(ctx, now)
		case now := <-joins.C:
			if m.becomeReady(now) {
				joins.Stop()
			}
		}
	}
}

// tick does what is due.
func (m *Member) tick(ctx context.Context, now time.Time) {
	m.with(ctx, func(do []replica.Effect) []replica.Effect {
		do = m.peers.Tick(now, m.link.Connected(), do)
		m.alone.Store(m.peers.Len() == 0)
		if left := m.leaves.Load(); left > 0 {
			m.leaves.Store(left - 1)
		}
		m.look(now)
		repeats := false
		m.rooms.Routers.Each(func(_ string, _ pools.Role, r *router.Router) { repeats = r.RepeatBindings() || repeats })
		if repeats {
			m.sayLocked()
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

// becomeReady looks whether what the others have booked is known, or has been waited for long enough, and returns [Member.Ready].
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

// hear takes in a message that a gateway has sent.
func (m *Member) hear(ctx context.Context, sender string, data []byte) {
	m.with(ctx, func(do []replica.Effect) []replica.Effect {
		do, err := m.peers.Hear(sender, data, time.Now(), do)
		if err != nil {
			m.log.Debug("message of another gateway ignored", "error", err)
		}
		return do
	})
}

// with calls f under the lock, does what it asks for, and wakes the queues of models whose workers have more room.
func (m *Member) with(ctx context.Context, f func(do []replica.Effect) []replica.Effect) {
	for _, model := range m.locked(ctx, f) {
		m.rooms.Wake(model)
	}
}

// locked calls f and does what it asks for, and returns the models whose queues are to be woken. A panic there leaves the lock free.
func (m *Member) locked(ctx context.Context, f func(do []replica.Effect) []replica.Effect) (woken []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	contain.Do(m.log, "replica", func() {
		m.do = f(m.do[:0])
		for _, e := range m.do {
			m.effect(ctx, e)
		}
	})
	woken, m.woken = m.woken, nil
	return woken
}
