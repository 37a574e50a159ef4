package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/contain"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/affinity"
	"github.com/tandem-pd/tandem/router/load"
	"github.com/tandem-pd/tandem/router/replica"
)

// gateway is what of a gateway shares: its routers, and its membership.
type gateway struct {
	t       testing.TB
	member  *Member
	link    *cuttable
	routers *router.Set
	pool    *pools.Pool
	logs    strings.Builder
	logMu   sync.Mutex
	woken   chan string
	warned  chan string
	heads   atomic.Pointer[[]replica.Head] // what waits
	heard   chan string                    // of others
	turn    int
	leave   context.CancelFunc
	left    chan struct{}
}

func (g *gateway) Write(b []byte) (int, error) {
	g.logMu.Lock()
	defer g.logMu.Unlock()
	return g.logs.Write(b)
}

func (g *gateway) logged() string {
	g.logMu.Lock()
	defer g.logMu.Unlock()
	return g.logs.String()
}

const workers = 16

// join starts a gateway on the NATS server at url, which chooses as if it were alone.
func join(t testing.TB, url, name string) *gateway { return joinAs(t, url, name, "") }

// joinAs starts one that knows of the others when it chooses, and grants the last room of small workers in a certain way.
func joinAs(t testing.TB, url, name, reserve string, access ...nats.Option) *gateway {
	t.Helper()
	g := &gateway{t: t, woken: make(chan string, 1), warned: make(chan string, 8), heard: make(chan string, 4096), left: make(chan struct{}), pool: &pools.Pool{Model: "m", Role: pools.Both}}
	g.heads.Store(new([]replica.Head))
	for i := range workers {
		g.pool.Members = append(g.pool.Members, pools.Member{Worker: &pools.Worker{ID: fmt.Sprintf("w%02d", i), BlockSize: 16, TotalKVBlocks: 100_000}})
	}
	base := router.DefaultConfig()
	if reserve != "" {
		base.Peers = known{g}
		for i := range g.pool.Members {
			g.pool.Members[i].Worker.TotalKVBlocks = small
		}
	}
	base.OnBooking, base.SessionTTL = func(made bool) { g.member.Booked(made) }, time.Minute
	var err error
	if g.routers, err = router.NewSet(base.ByRole(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(url, append(access, nats.NoEcho(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))...)
	if err != nil {
		t.Fatal(err)
	}
	cfg := setting.Default[Config]()
	cfg.Group, cfg.Name, cfg.Reserve = "tandem_workers", name, reserve
	log := slog.New(slog.NewTextHandler(g, nil))
	answering := answers(t)
	g.link = &cuttable{Link: natsbus.OverNATS(conn, natsbus.PendingLimits{}, log)}
	g.member = New(cfg, g.link, Rooms{
		Warn:    func(worker string, leg pools.Role) { g.warned <- worker + " " + string(leg) },
		Routers: g.routers, Pool: func(string, pools.Role) *pools.Pool { return g.pool }, Addr: func() string { return answering },
		Heads: func() []replica.Head { return slices.Clone(*g.heads.Load()) },
		Hear: func(gateway, model string, heads []replica.Head) bool {
			g.heard <- fmt.Sprint(gateway, " ", model, " ", heads)
			return len(heads) == 0
		},
		Wake: func(model string) {
			select {
			case g.woken <- model:
			default:
			}
		},
	}, log)
	g.member.patience = time.Minute // tests shorten it; an answer is late on a machine with other work
	ctx, cancel := context.WithCancel(context.Background())
	g.leave = sync.OnceFunc(func() { cancel(); <-g.left; conn.Close() })
	go func() {
		defer close(g.left)
		if err := g.member.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(g.leave)
	g.eventually("ready", g.member.Ready)
	return g
}

// answers is an address that answers every connection.
func answers(t testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	return ln.Addr().String()
}

func (g *gateway) eventually(what string, ok func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("never came true: %s\n%s", what, g.logged())
		}
	}
}

// book books a worker.
func (g *gateway) book() *router.Lease {
	g.t.Helper()
	g.turn++
	l, err := g.routers.For("m", pools.Both).Reserve(g.pool, router.Request{ID: fmt.Sprint(g.turn), ISL: 160}, time.Now())
	if err != nil {
		g.t.Fatal(err)
	}
	return l
}

// requests is how many are booked, by all gateways as far as this one knows.
func (g *gateway) requests() (n int) {
	for _, l := range g.routers.For("m", pools.Both).Loads(g.pool) {
		n += l.Requests
	}
	return n
}

func startNATS(t testing.TB, port int) *natsbus.Server {
	t.Helper()
	server, err := natsbus.StartServer(natsbus.ServerConfig{Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// TestAPanicEndsOneMessageAlone: what is heard after a message whose handling has panicked counts as before.
func TestAPanicEndsOneMessageAlone(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	close(b.heard) // the next heads panic
	a.heads.Store(&[]replica.Head{{Model: "m", Strict: 1, Key: 1}})
	a.member.Headed()
	b.eventually("it has panicked", func() bool { return strings.Contains(b.logged(), "panic in a handler") })
	a.book()
	b.eventually("b knows of a's booking", func() bool { return b.requests() == 1 })
}

// quiet is a link on which nothing passes but the page that is asked for.
type quiet struct {
	Link
	page []byte
}

func (quiet) Connected() bool         { return true }
func (quiet) Publish(*nats.Msg) error { return nil }
func (q quiet) Request(context.Context, *nats.Msg) (*nats.Msg, error) {
	return &nats.Msg{Data: q.page}, nil
}

// FuzzMember: whatever comes at each of a member's subjects, or as a page that it has asked for, nothing panics: neither here nor in the
// routers, which take in what is heard.
func FuzzMember(f *testing.F) {
	share := replica.SlotShare{Slot: replica.Slot{Model: "m", Role: pools.Both, Worker: "w00", Rank: 1}, Share: load.Share{Account: load.Account{Requests: 1, ActiveBlocks: 9}, Left: time.Second}}
	for _, m := range []replica.Message{
		{Kind: replica.Say, From: "a", Epoch: 1, Seq: 1, Shares: []replica.SlotShare{share}, Sends: []replica.SlotSent{{Slot: share.Slot, Hashes: []uint64{1, 2}}},
			Opened: []replica.Slot{share.Slot}, Asked: replica.Asked{Slot: share.Slot, Owner: "me"},
			Bound: []replica.PoolBound{{Model: "m", Role: pools.Both, Clock: 9, Bindings: []affinity.Binding{{Session: 1, Worker: 2, Born: 3}}}}},
		{Kind: replica.Beat, From: "a", Epoch: 1, Seq: 1, Digest: 1, Addr: "127.0.0.1:1", Echoes: []replica.Echo{{Name: "me"}}},
		{Kind: replica.Page, From: "a", Epoch: 1, Seq: 1, After: replica.Slot{Role: pools.Prefill}, Shares: []replica.SlotShare{share}},
		{Kind: replica.Heads, From: "a", Epoch: 1, Seq: 1, Heads: []replica.Head{{Model: "m", Strict: 1}}},
		{Kind: replica.Bye, From: "a", Epoch: 1},
	} {
		f.Add(m.Append(nil))
	}
	f.Add(replica.Ask(share.Slot))
	f.Add((&replica.Answer{From: "a", Epoch: 1, Seq: 1, Granted: true}).Append(nil))
	first := replica.Message{Kind: replica.Say, From: "a", Epoch: 1, Seq: 1, Shares: []replica.SlotShare{share}}
	f.Fuzz(func(t *testing.T, data []byte) {
		pool := &pools.Pool{Model: "m", Role: pools.Both, Members: []pools.Member{{Worker: &pools.Worker{ID: "w00", BlockSize: 16, TotalKVBlocks: 100}}}}
		base := router.DefaultConfig()
		base.SessionTTL = time.Minute
		routers, err := router.NewSet(base.ByRole(), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		cfg := setting.Default[Config]()
		cfg.Group, cfg.Name = "test", "me"
		m := New(cfg, quiet{page: data}, Rooms{
			Routers: routers, Pool: func(string, pools.Role) *pools.Pool { return pool }, Addr: func() string { return "" },
			Warn: func(string, pools.Role) {}, Wake: func(string) {}, Heads: func() []replica.Head { return nil },
			Hear: func(string, string, []replica.Head) bool { return true },
		}, slog.New(slog.DiscardHandler))
		before := contain.Panics()["replica"]
		ctx := t.Context()
		m.join(time.Now())
		m.tick(ctx, time.Now())
		m.hear(ctx, "a", first.Append(nil)) // which has a page asked for
		for _, handle := range []func(*nats.Msg){func(msg *nats.Msg) { m.hear(ctx, "a", msg.Data) }, m.reply, m.answered} {
			for range 2 {
				handle(&nats.Msg{Subject: cfg.answered("a", "me"), Reply: "r", Data: data})
			}
		}
		m.tick(ctx, time.Now().Add(time.Minute))
		m.calls.Wait()
		m.say()
		if _, err := routers.For("m", pools.Both).Reserve(pool, router.Request{ID: "r", ISL: 160}, time.Now()); err != nil && contain.Panics()["replica"] > before {
			t.Error(err)
		}
		if n := contain.Panics()["replica"] - before; n > 0 {
			t.Errorf("%d panics", n)
		}
	})
}

// TestBookingsAreShared: what one gateway has booked counts at the others, from before they are ready; its end wakes who waits
// there; and with a gateway that leaves it ends.
func TestBookingsAreShared(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a := join(t, server.URL(), "a")
	early := a.book()
	b, c := join(t, server.URL(), "b"), join(t, server.URL(), "c")
	if b.requests() != 1 || c.requests() != 1 {
		t.Errorf("ready, and %d and %d of 1 booking are known", b.requests(), c.requests())
	}
	var leases []*router.Lease
	for range workers - 1 {
		leases = append(leases, b.book())
		a.eventually("a knows it", func() bool { return a.requests() == b.requests() })
		c.eventually("c knows it", func() bool { return c.requests() == b.requests() })
	}
	used := map[string]bool{early.Worker.ID: true}
	for _, l := range leases {
		used[l.Worker.ID] = true
	}
	if len(used) != workers {
		t.Errorf("%d bookings are on %d workers: b does not see a's", workers, len(used))
	}
	if len(c.woken) != 0 {
		t.Error("c's queue is woken though nothing has ended")
	}
	early.Release(time.Now())
	c.eventually("c's queue is woken", func() bool { return len(c.woken) > 0 })
	b.leave()
	for _, g := range []*gateway{a, c} {
		g.eventually("what b had booked has ended with it", func() bool { return g.requests() == 0 })
		g.eventually("its log says that b has left", func() bool { return strings.Contains(g.logged(), "drained and left the group") })
		if log := g.logged(); strings.Contains(log, "gateway died") {
			t.Errorf("b left: %s", log)
		}
	}
}

// TestJoinsSoon starts a gateway again and again among two that have 5,000 bookings open. It is ready within 300 ms, and what it then counts
// on each worker is what the others count there.
func TestJoinsSoon(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	for i := range 5000 {
		[]*gateway{a, b}[i%2].book().PrefillDone(time.Now())
	}
	for _, g := range []*gateway{a, b} {
		g.eventually("it knows all bookings", func() bool { return g.requests() == 5000 })
	}
	const times = 10
	var took []time.Duration
	for range times {
		began := time.Now()
		c := join(t, server.URL(), "c")
		took = append(took, time.Since(began))
		theirs := a.routers.For("m", pools.Both).Loads(a.pool)
		for i, own := range c.routers.For("m", pools.Both).Loads(c.pool) {
			if want := theirs[i]; own.Requests != want.Requests || own.ActiveBlocks != want.ActiveBlocks || own.PrefillTokens != want.PrefillTokens {
				t.Errorf("ready, and it counts %+v, another gateway %+v", own, want)
			}
		}
		c.leave()
	}
	slices.Sort(took)
	t.Logf("ready after %v, %v at most, of %d starts", took[times/2], took[times-1], times)
	if took[times/2] > 300*time.Millisecond { // one may meet other work on the machine
		t.Error("that is too late")
	}
}

// TestPredictionsAreShared: where workers publish no KV events, a prompt that one gateway has sent is predicted at the others too.
func TestPredictionsAreShared(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	a.eventually("both know each other", func() bool { return len(a.member.Peers()) == 1 && len(b.member.Peers()) == 1 })
	req := router.Request{ID: "1", ISL: 64, Hashes: []uint64{11, 12, 13, 14}}
	l, err := a.routers.For("m", pools.Both).Reserve(a.pool, req, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b.eventually("the prompt is predicted", func() bool { return b.routers.For("m", pools.Both).BestOverlap(b.pool, req, time.Now()) == 4 })
	for i, held := range b.routers.For("m", pools.Both).Held(b.pool, req, time.Now()) {
		if (held > 0) != (b.pool.Members[i].Worker.ID == l.Worker.ID) {
			t.Errorf("worker %d is predicted to hold %d blocks; %s was sent them", i, held, l.Worker.ID)
		}
	}
}

// TestSessionsAreShared: a session that one gateway has bound is bound at the others, one that joins later too. A failure that one of
// them sees drops it everywhere.
func TestSessionsAreShared(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	a.eventually("both know each other", func() bool { return len(a.member.Peers()) == 1 && len(b.member.Peers()) == 1 })
	use := func(g *gateway, pin *router.Pin) *router.Lease {
		t.Helper()
		g.turn++
		l, err := g.routers.For("m", pools.Both).Reserve(g.pool, router.Request{ID: fmt.Sprint(g.turn), ISL: 160, Session: "s", Pin: pin}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		l.Bind(time.Now())
		return l
	}
	bound := func(g *gateway) int { return g.routers.For("m", pools.Both).Bindings(time.Now()).Bindings }
	use(a, &router.Pin{Worker: "w07"})
	b.eventually("b has the binding", func() bool { return bound(b) == 1 })
	c := join(t, server.URL(), "c")
	c.eventually("c has the binding", func() bool { return bound(c) == 1 })
	for _, g := range []*gateway{a, b, c} {
		for range 3 {
			if l := use(g, nil); l.Worker.ID != "w07" {
				t.Errorf("on %s, bound to w07, which has most to do", l.Worker.ID)
			}
		}
	}
	use(c, &router.Pin{Worker: "w07"}).Unbind(time.Now())
	for _, g := range []*gateway{a, b, c} {
		g.eventually("the binding is dropped", func() bool { return bound(g) == 0 })
	}
}

// TestOpenedCircuitsAreKnown: where a worker's circuit opens at one gateway, the others are warned, once.
func TestOpenedCircuitsAreKnown(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	a.eventually("both know each other", func() bool { return len(a.member.Peers()) == 1 && len(b.member.Peers()) == 1 })
	a.member.Opened("m", "w07", pools.Decode)
	if got := <-b.warned; got != "w07 decode" {
		t.Errorf("warned of %s", got)
	}
	a.book()
	b.eventually("b knows it", func() bool { return b.requests() == 1 })
	if len(b.warned) != 0 || len(a.warned) != 0 {
		t.Error("warned twice, or itself")
	}
}

// TestHeadsAreKnown: what waits at one gateway the others know, again and again while it waits and no more often than that; with its end
// their queues are woken, and what it has got is known by then. A gateway at which nothing waits says nothing.
func TestHeadsAreKnown(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	a.eventually("both know each other", func() bool { return len(a.member.Peers()) == 1 && len(b.member.Peers()) == 1 })
	set := func(heads ...replica.Head) {
		a.heads.Store(&heads)
		a.member.Headed()
	}
	set()
	set(replica.Head{Model: "m", Strict: 10, Tokens: 100})
	const said = "a m [{m 0 false 10 0 100}]"
	began := time.Now()
	for range 5 {
		if got := <-b.heard; got != said {
			t.Errorf("heard %q", got)
		}
	}
	if took := time.Since(began); took < 75*time.Millisecond || len(b.woken) > 0 {
		t.Errorf("said five times within %v, and the queue was woken %d times", took, len(b.woken))
	}
	a.book()
	set()
	for got := range b.heard {
		if got != said {
			if got != "a m []" || b.requests() != 1 {
				t.Errorf("heard %q and %d bookings", got, b.requests())
			}
			break
		}
	}
	if got := <-b.woken; got != "m" {
		t.Errorf("%s is woken", got)
	}
	b.book()
	a.eventually("words pass", func() bool { return a.requests() == 2 })
	if len(b.heard) != 0 || len(a.heard) != 0 {
		t.Error("said though nothing waits")
	}
	set(replica.Head{Model: "m", Strict: 1})
	<-b.heard
	c := join(t, server.URL(), "c")
	<-c.heard
	a.leave()
	c.eventually("nothing waits at a gateway that has left", func() bool { return len(c.heard) > 0 && <-c.heard == "a m []" })
}

// TestEndsAreSaidAtOnce: while a request waits at another gateway, a release is not kept to go with a booking.
func TestEndsAreSaidAtOnce(t *testing.T) {
	m := New(setting.Default[Config](), nil, Rooms{Hear: func(string, string, []replica.Head) bool { return false }}, slog.New(slog.DiscardHandler))
	defer m.tail.Stop()
	m.Booked(false)
	if len(m.wake) != 0 {
		t.Error("said at once though nothing waits")
	}
	(*books)(m).HearHeads("a", "m", nil, time.Now())
	m.Booked(false)
	if len(m.wake) != 0 {
		t.Error("said at once though nothing waits any more")
	}
	(*books)(m).HearHeads("a", "m", []replica.Head{{Strict: 1}}, time.Now())
	m.Booked(false)
	if len(m.wake) != 1 {
		t.Error("kept though a request waits for it")
	}
}

// TestNATSIsAway: bookings go on while no message passes. When they pass again, all is known again.
func TestNATSIsAway(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	var port int
	if _, err := fmt.Sscanf(server.URL(), "nats://127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	a, b := join(t, server.URL(), "a"), join(t, server.URL(), "b")
	first := a.book()
	b.eventually("b knows it", func() bool { return b.requests() == 1 })
	server.Close()
	b.eventually("b is cut off", b.member.CutOff)
	first.Release(time.Now())
	for range 3 {
		a.book()
	}
	b.book()
	if a.requests() != 3 && a.requests() != 4 || b.requests() == 4 {
		t.Errorf("no message passes, and a knows of %d requests, b of %d", a.requests(), b.requests())
	}
	startNATS(t, port)
	for _, g := range []*gateway{a, b} {
		g.eventually("all is known again", func() bool { return g.requests() == 4 && !g.member.CutOff() })
	}
}

// bound starts NATS with the users and permissions of the file that is shipped, known by passwords in the place of certificates.
func bound(t *testing.T) string {
	text, err := os.ReadFile("../../../deploy/compose/security/nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	_, accounts, found := strings.Cut(string(text), "\naccounts ")
	options := &natsd.Options{Host: "127.0.0.1", Port: natsd.RANDOM_PORT, NoLog: true, NoSigs: true}
	if err := options.ProcessConfigString("accounts " + accounts); err != nil || !found {
		t.Fatal(err)
	}
	for _, user := range options.Users {
		user.Password = "pw"
	}
	server, err := natsd.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	server.Start()
	t.Cleanup(func() { server.Shutdown(); server.WaitForShutdown() })
	if !server.ReadyForConnections(10 * time.Second) {
		t.Fatal("NATS is not ready")
	}
	return server.ClientURL()
}

// TestANameIsBound: a gateway can neither say that another has left nor answer for it: where NATS knows gateways by their users it refuses the
// subjects, and elsewhere a name that is not the subject's counts for nothing.
func TestANameIsBound(t *testing.T) {
	as := func(id string) nats.Option { return nats.UserInfo(id+".tandem.internal", "pw") }
	for _, knows := range []bool{true, false} {
		t.Run(fmt.Sprint("NATS knows them: ", knows), func(t *testing.T) {
			url := ""
			if knows {
				url = bound(t)
			} else {
				url = startNATS(t, 0).URL()
			}
			a, b := joinAs(t, url, "gateway-1:8000", "", as("gateway-1")), joinAs(t, url, "gateway-2:8000", "", as("gateway-2"))
			early := b.book()
			a.eventually("a knows b's booking", func() bool { return a.requests() == 1 })
			complaints := make(chan error, 8)
			forger, err := nats.Connect(url, as("gateway-3"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { complaints <- err }))
			if err != nil {
				t.Fatal(err)
			}
			defer forger.Close()
			cfg, victim := &a.member.cfg, "gateway-2:8000"
			bye := replica.NewOwn(victim, replica.Epoch(time.Now().Add(time.Hour), 1)).Bye()
			subjects := []string{cfg.said("gateway-3:8000")}
			if knows {
				subjects = append(subjects, cfg.said(victim), cfg.answered(victim, "gateway-1:8000"), cfg.asked(victim, "gateway-1:8000"))
			}
			for i, subject := range subjects {
				if err := forger.Publish(subject, bye); err != nil {
					t.Fatal(err)
				}
				if i > 0 {
					if err := <-complaints; !errors.Is(err, nats.ErrPermissionViolation) {
						t.Errorf("%s: %v", subject, err)
					}
				}
			}
			a.eventually("its log says so", func() bool { return strings.Contains(a.logged(), "they bear another gateway's name") })
			b.book()
			a.eventually("a knows b's bookings", func() bool { return a.requests() == 2 })
			early.Release(time.Now())
			a.eventually("and their end", func() bool { return a.requests() == 1 })
			if n := a.member.Counts(); n.Malformed != 1 || n.Left > 0 || n.Died > 0 || strings.Contains(b.logged(), "--replica-name") {
				t.Errorf("%+v\n%s", n, b.logged())
			}
		})
	}
}

// TestNames: every name is one token of a subject, and read back.
func TestNames(t *testing.T) {
	c := &Config{Group: "test"}
	for name, want := range map[string]string{
		"gateway-1:8000": "gateway-1:8000", "gw.example:8000": "gw%2Eexample:8000", "[::1]:80": "%5B::1%5D:80", "gw%2Eexample": "gw%252Eexample",
		"*": "%2A", ">": "%3E", "a b\r\n\t": "a%20b%0D%0A%09", "é\xff\x00": "%C3%A9%FF%00", "..": "%2E%2E",
	} {
		subject := c.said(token(name))
		if got := token(name); got != want || c.sender(subject) != name || strings.Count(subject, ".") != 4 {
			t.Errorf("%q is %q, in %q of %q", name, got, subject, c.sender(subject))
		}
	}
	for _, none := range []string{"tandem.replica.test.%zz.say", "tandem.replica.test..say"} {
		if got := c.sender(none); got != "" {
			t.Errorf("%q is %q's", none, got)
		}
	}
}

// TestTwoOfOneName: the later one's bookings count, the earlier one's log says why its own do not.
func TestTwoOfOneName(t *testing.T) {
	t.Parallel()
	server := startNATS(t, 0)
	early := join(t, server.URL(), "twin")
	other := join(t, server.URL(), "other")
	late := join(t, server.URL(), "twin")
	early.eventually("the earlier one reports it", func() bool { return strings.Contains(early.logged(), "--replica-name") })
	late.book()
	early.book()
	other.eventually("the later one's booking is known", func() bool { return other.requests() == 1 })
	if log := late.logged(); strings.Contains(log, "--replica-name") {
		t.Errorf("the later one reports it: %s", log)
	}
}

func TestConfig(t *testing.T) {
	for group, want := range map[string]string{"auto": "tandem_workers", "off": "off", "east-1": "east-1"} {
		c := setting.Default[Config]()
		c.Group = group
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		if c.Complete("/tandem/workers"); c.Group != want || c.Shares() == (group == "off") {
			t.Errorf("%s is %s, shares: %v", group, c.Group, c.Shares())
		}
	}
	for _, group := range []string{"a.b", "a b", "*", strings.Repeat("g", 65)} {
		c := setting.Default[Config]()
		c.Group = group
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "replica-group") {
			t.Errorf("%q: %v", group, err)
		}
	}
}
