package replica

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/load"
)

// gateway is what of a gateway shares: its routers, and its membership.
type gateway struct {
	t        testing.TB
	member   *Member
	link     *cuttable
	routers  *router.Set
	pool     *pools.Pool
	logs     strings.Builder
	logMu    sync.Mutex
	woken    chan string
	warned   chan string
	heads    atomic.Pointer[[]queue.Head] // what waits
	received chan string                  // of others
	turn     int
	leave    context.CancelFunc
	left     chan struct{}
}

// cuttable is a link over which nothing passes while it is cut.
type cuttable struct {
	Link
	cut atomic.Bool
}

func (c *cuttable) Connected() bool { return !c.cut.Load() && c.Link.Connected() }

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

// inGroup runs a test in virtual time, in which messages pass within the process; join starts a gateway.
func inGroup(t *testing.T, test func(t *testing.T, join func(name string) *gateway)) {
	synctest.Test(t, func(t *testing.T) {
		bus := testkit.NewBus()
		t.Cleanup(bus.Close)
		test(t, func(name string) *gateway { return joinOver(t, wired{bus}, name, "nowhere") })
	})
}

// wired is a link within the process. A message to all takes as long as one over a network.
type wired struct{ *testkit.Bus }

func (wired) Connected() bool { return true }

func (w wired) Publish(m *nats.Msg) error {
	if m.Reply != "" || !strings.HasSuffix(m.Subject, ".say") {
		return w.Bus.Publish(m)
	}
	m = &nats.Msg{Subject: m.Subject, Data: slices.Clone(m.Data)}
	time.AfterFunc(delay, func() { _ = w.Bus.Publish(m) })
	return nil
}

const delay = 200 * time.Microsecond

// join starts a gateway on the NATS server at url, which chooses as if it were alone.
func join(t testing.TB, url, name string, access ...nats.Option) *gateway {
	t.Helper()
	conn, err := nats.Connect(url, append(access, nats.NoEcho(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectBufSize(-1))...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return joinOver(t, natsbus.OverNATS(conn, natsbus.PendingLimits{}, slog.New(slog.DiscardHandler)), name, answers(t))
}

func joinOver(t testing.TB, link Link, name, addr string) *gateway {
	t.Helper()
	g := &gateway{t: t, woken: make(chan string, 1), warned: make(chan string, 8), received: make(chan string, 4096),
		left: make(chan struct{}), pool: &pools.Pool{Model: "m", Role: pools.Both}}
	g.heads.Store(new([]queue.Head))
	for i := range workers {
		g.pool.Members = append(g.pool.Members,
			pools.Member{Worker: &pools.Worker{ID: fmt.Sprintf("w%02d", i), BlockSize: 16, TotalKVBlocks: 100_000}})
	}
	base := router.DefaultConfig()
	base.OnBooking, base.SessionTTL = func(made bool) { g.member.Booked(made) }, time.Minute
	var err error
	g.routers, err = router.NewSet(base.ByRole(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	cfg := setting.Default[MemberConfig]()
	cfg.Group, cfg.Name = "tandem_workers", name
	g.link = &cuttable{Link: link}
	g.member = NewMember(cfg, g.link, slog.New(slog.NewTextHandler(g, nil)))
	g.member.Share(Rooms{
		Warn:    func(worker string, leg pools.Role) { g.warned <- worker + " " + string(leg) },
		Routers: g.routers, Pool: func(string, pools.Role) *pools.Pool { return g.pool }, Addr: func() string { return addr },
		Heads: func() map[string][]queue.Head { return map[string][]queue.Head{"m": *g.heads.Load()} },
		ApplyHeads: func(gateway, model string, heads []queue.Head) bool {
			g.received <- fmt.Sprint(gateway, " ", model, " ", heads)
			return len(heads) == 0
		},
		Wake: func(model string) {
			select {
			case g.woken <- model:
			default:
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	g.leave = sync.OnceFunc(func() { cancel(); <-g.left })
	go func() {
		defer close(g.left)
		assert.NoError(t, g.member.Run(ctx))
	}()
	t.Cleanup(g.leave)
	g.eventually("ready", g.member.Ready)
	return g
}

// answers is an address that answers every connection.
func answers(t testing.TB) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
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
		require.True(g.t, !time.Now().After(deadline), "never came true: %s\n%s", what, g.logged())
	}
}

// ask books as a request asks, whose id is set.
func (g *gateway) ask(req router.Request) *router.Lease {
	g.t.Helper()
	g.turn++
	req.ID = fmt.Sprint(g.turn)
	l, err := g.routers.For("m", pools.Both).Reserve(g.pool, req, time.Now())
	require.NoError(g.t, err)
	return l
}

// book books a worker.
func (g *gateway) book() *router.Lease { g.t.Helper(); return g.ask(router.Request{ISL: 160}) }

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
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server
}

// TestAPanicEndsOneMessageAlone: what arrives after a message whose handling has panicked counts as before.
func TestAPanicEndsOneMessageAlone(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		a, b := join("a"), join("b")
		close(b.received) // the next heads panic
		before := guard.Panics()["replica"]
		a.heads.Store(&[]queue.Head{{Strict: 1, Key: 1}})
		a.member.HeadsChanged()
		b.eventually("it has panicked", func() bool { return guard.Panics()["replica"] > before })
		a.book()
		b.eventually("b knows of a's booking", func() bool { return b.requests() == 1 })
	})
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
// routers, which apply it.
func FuzzMember(f *testing.F) {
	share := SlotShare{Slot: Slot{Role: pools.Both, Worker: "w00", Rank: 1},
		Share: load.Share{Account: load.Account{Requests: 1, ActiveBlocks: 9}, Left: time.Second}}
	for _, m := range []Message{
		{Kind: natsbus.Delta, From: "a", Epoch: 1, Seq: 1, Shares: []SlotShare{share},
			Sends:  []SlotSent{{Slot: share.Slot, Hashes: []uint64{1, 2}}},
			Opened: []Slot{share.Slot},
			Bound:  []PoolBound{{Role: pools.Both, Clock: 9, Bindings: []load.SessionBinding{{Session: 1, Worker: 2, Born: 3}}}}},
		{Kind: natsbus.Heartbeat, From: "a", Epoch: 1, Seq: 1, Digest: 1, Addr: "127.0.0.1:1", Echoes: []Echo{{Name: "me"}}},
		{Kind: natsbus.Page, From: "a", Epoch: 1, Seq: 1, After: Slot{Role: pools.Prefill}, Shares: []SlotShare{share}},
		{Kind: natsbus.Heads, From: "a", Epoch: 1, Seq: 1, Heads: []ModelHead{{"m", queue.Head{Strict: 1}}}},
		{Kind: natsbus.Leave, From: "a", Epoch: 1},
	} {
		f.Add(m.Append(nil))
	}
	f.Add(NewLocal("a", 1).PageRequest(share.Slot))
	first := Message{Kind: natsbus.Delta, From: "a", Epoch: 1, Seq: 1, Shares: []SlotShare{share}}
	f.Fuzz(func(t *testing.T, data []byte) {
		pool := &pools.Pool{Role: pools.Both, Members: []pools.Member{{Worker: &pools.Worker{ID: "w00", BlockSize: 16, TotalKVBlocks: 100}}}}
		base := router.DefaultConfig()
		base.SessionTTL = time.Minute
		routers, err := router.NewSet(base.ByRole(), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		cfg := setting.Default[MemberConfig]()
		cfg.Group, cfg.Name = "test", "me"
		m := NewMember(cfg, quiet{page: data}, slog.New(slog.DiscardHandler))
		m.Share(Rooms{
			Routers: routers, Pool: func(string, pools.Role) *pools.Pool { return pool }, Addr: func() string { return "" },
			Warn: func(string, pools.Role) {}, Wake: func(string) {}, Heads: func() map[string][]queue.Head { return nil },
			ApplyHeads: func(string, string, []queue.Head) bool { return true },
		})
		before := guard.Panics()["replica"]
		ctx := t.Context()
		m.join(time.Now())
		m.tick(ctx, time.Now())
		m.receive(ctx, "a", first.Append(nil)) // which has a page asked for
		for _, handle := range []func(*nats.Msg){func(msg *nats.Msg) { m.receive(ctx, "a", msg.Data) }, m.reply} {
			for range 2 {
				handle(&nats.Msg{Subject: cfg.deltas("a"), Reply: "r", Data: data})
			}
		}
		m.tick(ctx, time.Now().Add(time.Minute))
		m.calls.Wait()
		m.publishDelta()
		_, _ = routers.For("m", pools.Both).Reserve(pool, router.Request{ID: "r", ISL: 160}, time.Now()) // room or not
		assert.Equal(t, before, guard.Panics()["replica"], "panics")
	})
}

// TestBookingsAreShared: what one gateway has booked counts at the others, from before they are ready; its end wakes who waits
// there; and with a gateway that leaves it ends. While no message passes, bookings go on. When they pass again, all is known again.
func TestBookingsAreShared(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		a := join("a")
		early := a.book()
		b, c := join("b"), join("c")
		assert.True(t, b.requests() == 1 && c.requests() == 1,
			"ready, and %d and %d of 1 booking are known", b.requests(), c.requests())
		used := map[string]bool{early.Worker.ID: true}
		for i := range workers - 1 {
			used[b.book().Worker.ID] = true
			time.Sleep(delay)
			synctest.Wait()
			require.True(t, a.requests() == i+2 && c.requests() == i+2,
				"of %d bookings a knows %d, c %d", i+2, a.requests(), c.requests())
		}
		assert.Len(t, used, workers, "workers that 16 bookings are on: b sees a's")
		assert.Empty(t, c.woken, "though nothing has ended")
		early.Release(time.Now())
		assert.Equal(t, "m", <-c.woken)

		for _, g := range []*gateway{a, b, c} {
			g.link.cut.Store(true)
		}
		b.eventually("b is cut off", b.member.CutOff)
		again := a.book()
		c.book().Release(time.Now())
		time.Sleep(delay + tail)
		assert.True(t, a.requests() == workers && b.requests() == workers-1,
			"no message passes, and a knows of %d requests, b of %d", a.requests(), b.requests())
		for _, g := range []*gateway{a, b, c} {
			g.link.cut.Store(false)
		}
		for _, g := range []*gateway{a, b, c} {
			g.eventually("all is known again", func() bool { return g.requests() == workers && !g.member.CutOff() })
		}

		again.Release(time.Now())
		b.leave()
		for _, g := range []*gateway{a, c} {
			g.eventually("what b had booked has ended with it", func() bool { return g.requests() == 0 })
			g.eventually("its log reports that b has left", func() bool { return strings.Contains(g.logged(), "drained and left the group") })
			assert.NotContains(t, g.logged(), "gateway died")
		}
	})
}

// TestPredictionsAreShared: where workers publish no KV events, a prompt that one gateway has sent is predicted at the others too.
func TestPredictionsAreShared(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		a, b := join("a"), join("b")
		req := router.Request{ISL: 64, Hashes: []uint64{11, 12, 13, 14}}
		l := a.ask(req)
		b.eventually("the prompt is predicted", func() bool { return b.routers.For("m", pools.Both).Look(b.pool, req, time.Now()).Blocks == 4 })
		for i, held := range b.routers.For("m", pools.Both).Held(b.pool, req, time.Now()) {
			assert.Equal(t, (b.pool.Members[i].Worker.ID == l.Worker.ID), (held > 0),
				"worker %d is predicted to hold %d blocks; %s was sent them", i, held, l.Worker.ID)
		}
	})
}

// TestSessionsAreShared: a session that one gateway has bound is bound at the others, one that joins later too. A failure that one of
// them sees drops it everywhere.
func TestSessionsAreShared(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		a, b := join("a"), join("b")
		use := func(g *gateway, pin *router.Pin) *router.Lease {
			t.Helper()
			l := g.ask(router.Request{ISL: 160, Session: "s", Pin: pin})
			l.Bind(time.Now())
			return l
		}
		bound := func(g *gateway) int { return g.routers.For("m", pools.Both).Bindings(time.Now()).Bindings }
		use(a, &router.Pin{Worker: "w07"})
		b.eventually("b has the binding", func() bool { return bound(b) == 1 })
		c := join("c")
		c.eventually("c has the binding", func() bool { return bound(c) == 1 })
		for _, g := range []*gateway{a, b, c} {
			for range 3 {
				assert.Equal(t, "w07", use(g, nil).Worker.ID, "the worker that it is bound to, which has most to do")
			}
		}
		use(c, &router.Pin{Worker: "w07"}).Unbind(time.Now())
		for _, g := range []*gateway{a, b, c} {
			g.eventually("the binding is dropped", func() bool { return bound(g) == 0 })
		}
	})
}

// TestOpenedCircuitsArePublished: where a worker's circuit opens at one gateway, the others are warned, once.
func TestOpenedCircuitsArePublished(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		a, b := join("a"), join("b")
		a.member.Opened("m", "w07", pools.Decode)
		assert.Equal(t, "w07 decode", <-b.warned)
		time.Sleep(time.Second)
		assert.True(t, len(b.warned) == 0 && len(a.warned) == 0, "warned twice, or itself")
	})
}

// TestHeadsReachTheOthers: what waits at one gateway the others know, again and again while it waits and no more often than that; with its end
// their queues are woken, and what it has got is known by then. A gateway at which nothing waits sends nothing.
func TestHeadsReachTheOthers(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		a, b := join("a"), join("b")
		set := func(heads ...queue.Head) {
			a.heads.Store(&heads)
			a.member.HeadsChanged()
		}
		set()
		set(queue.Head{Strict: 10, Tokens: 100})
		const want = "a m [{0 false 10 0 100}]"
		began := time.Now()
		for range 5 {
			assert.Equal(t, want, <-b.received)
		}
		assert.Equal(t, 80*time.Millisecond+delay, time.Since(began), "sent five times")
		assert.Empty(t, b.woken)
		a.book()
		set()
		got := <-b.received
		for got == want {
			got = <-b.received
		}
		assert.True(t, got == "a m []" && b.requests() == 1, "received %q and %d bookings", got, b.requests())
		assert.Equal(t, "m", <-b.woken)
		time.Sleep(time.Second)
		assert.True(t, len(b.received) == 0 && len(a.received) == 0, "sent though nothing waits")
		set(queue.Head{Strict: 1})
		<-b.received
		c := join("c")
		<-c.received
		a.leave()
		c.eventually("nothing waits at a gateway that has left", func() bool { return len(c.received) > 0 && <-c.received == "a m []" })
	})
}

// TestRoutersSeeTheOthers: the group's gateways by name, and their unseen bookings in the pool that is booked in.
func TestRoutersSeeTheOthers(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		a, b := join("a"), join("b")
		b.eventually("a knows b", func() bool {
			return slices.Equal(a.member.Group().Names, []string{"a", "b"}) && a.member.Group().Own == "a"
		})
		group := a.member.Group()
		a.eventually("bookings of b are on their way", func() bool {
			a.book().Release(time.Now())
			b.book().Release(time.Now())
			return a.member.Unseen(a.pool) > 0
		})
		assert.Len(t, a.member.Peers(), 1)
		assert.Same(t, group, a.member.Group(), "an unchanged group")
		assert.Zero(t, a.member.Unseen(&pools.Pool{Model: "m", Role: pools.Prefill}), "unseen bookings in a pool that none is made in")
		b.leave()
		a.eventually("b has left", func() bool { return slices.Equal(a.member.Group().Names, []string{"a"}) })
		var alone *Member
		assert.True(t, alone.Group() == nil && alone.Unseen(a.pool) == 0, "a gateway alone knows of others")
	})
}

// TestReleasesArePublishedAtOnce: while a request waits at another gateway, a release is not kept to go with a booking.
func TestReleasesArePublishedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMember(setting.Default[MemberConfig](), nil, slog.New(slog.DiscardHandler))
		m.Share(Rooms{ApplyHeads: func(string, string, []queue.Head) bool { return false }})
		defer m.tail.Stop()
		m.Booked(false)
		assert.Empty(t, m.wake, "sent at once though nothing waits")
		(*memberBooks)(m).ApplyHeads("a", "m", nil, time.Now())
		m.Booked(false)
		assert.Empty(t, m.wake, "sent at once though nothing waits any more")
		(*memberBooks)(m).ApplyHeads("a", "m", []queue.Head{{Strict: 1}}, time.Now())
		m.Booked(false)
		assert.Len(t, m.wake, 1, "kept though a request waits for it")
	})
}

// bound starts NATS with the users and permissions of the file that is shipped, known by passwords in the place of certificates.
func bound(t *testing.T) string {
	text, err := os.ReadFile("../../deploy/compose/security/nats.conf")
	require.NoError(t, err)
	_, accounts, found := strings.Cut(string(text), "\naccounts ")
	require.True(t, found)
	options := &natsd.Options{Host: "127.0.0.1", Port: natsd.RANDOM_PORT, NoLog: true, NoSigs: true}
	require.NoError(t, options.ProcessConfigString("accounts "+accounts))
	for _, user := range options.Users {
		user.Password = "pw"
	}
	server, err := natsd.NewServer(options)
	require.NoError(t, err)
	server.Start()
	t.Cleanup(func() { server.Shutdown(); server.WaitForShutdown() })
	require.True(t, server.ReadyForConnections(10*time.Second))
	return server.ClientURL()
}

// TestANameIsBound: a gateway can neither report that another has left nor answer for it: where NATS knows gateways by their users it refuses the
// subjects, and elsewhere a name that is not the subject's counts for nothing.
func TestANameIsBound(t *testing.T) {
	as := func(id string) nats.Option { return nats.UserInfo(id+".tandem.internal", "pw") }
	for _, knows := range []bool{true, false} {
		t.Run(fmt.Sprint("NATS knows them: ", knows), func(t *testing.T) {
			t.Parallel()
			var url string
			if knows {
				url = bound(t)
			} else {
				url = startNATS(t, 0).URL()
			}
			a, b := join(t, url, "gateway-1:8000", as("gateway-1")), join(t, url, "gateway-2:8000", as("gateway-2"))
			early := b.book()
			a.eventually("a knows b's booking", func() bool { return a.requests() == 1 })
			complaints := make(chan error, 8)
			forger, err := nats.Connect(url, as("gateway-3"),
				nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { complaints <- err }))
			require.NoError(t, err)
			defer forger.Close()
			cfg, victim := &a.member.cfg, "gateway-2:8000"
			bye := NewLocal(victim, Epoch(time.Now().Add(time.Hour), 1)).Leave()
			require.NoError(t, forger.Publish(cfg.deltas("gateway-3:8000"), bye))
			if knows {
				for _, subject := range []string{cfg.deltas(victim), cfg.pageRequests(victim, "gateway-1:8000")} {
					require.NoError(t, forger.Publish(subject, bye))
					assert.ErrorIs(t, <-complaints, nats.ErrPermissionViolation, subject)
				}
			}
			a.eventually("its log reports it", func() bool { return strings.Contains(a.logged(), "they bear another gateway's name") })
			b.book()
			a.eventually("a knows b's bookings", func() bool { return a.requests() == 2 })
			early.Release(time.Now())
			a.eventually("and their end", func() bool { return a.requests() == 1 })
			n := a.member.Counts()
			assert.Equal(t, []uint64{1, 0, 0}, []uint64{n.Malformed, n.Left, n.Died}, "malformed, left, died")
			assert.NotContains(t, b.logged(), "replica name in use")
		})
	}
}

// TestNames: every name is one token of a subject, and read back.
func TestNames(t *testing.T) {
	c := &MemberConfig{Group: "test"}
	for name, want := range map[string]string{
		"gateway-1:8000": "gateway-1:8000", "gw.example:8000": "gw%2Eexample:8000", "[::1]:80": "%5B::1%5D:80", "gw%2Eexample": "gw%252Eexample",
		"*": "%2A", ">": "%3E", "a b\r\n\t": "a%20b%0D%0A%09", "é\xff\x00": "%C3%A9%FF%00", "..": "%2E%2E",
	} {
		subject := c.deltas(token(name))
		if got := token(name); got != want || c.sender(subject) != name || strings.Count(subject, ".") != 4 {
			t.Errorf("%q is %q, in %q of %q", name, got, subject, c.sender(subject))
		}
	}
	for _, none := range []string{"tandem.replica.test.%zz.say", "tandem.replica.test..say"} {
		assert.Empty(t, c.sender(none), "%q's", none)
	}
}

// TestTwoOfOneName: the later one's bookings count, the earlier one's log names the reason why its own do not.
func TestMemberTwoOfOneName(t *testing.T) {
	inGroup(t, func(t *testing.T, join func(string) *gateway) {
		early, other, late := join("twin"), join("other"), join("twin")
		early.eventually("the earlier one reports it", func() bool { return strings.Contains(early.logged(), "replica name in use") })
		late.book()
		early.book()
		other.eventually("the later one's booking is known", func() bool { return other.requests() == 1 })
		assert.NotContains(t, late.logged(), "replica name in use", "the later one's log")
	})
}

func TestConfig(t *testing.T) {
	for group, want := range map[string]string{"auto": "tandem_workers", "off": "off", "east-1": "east-1"} {
		c := setting.Default[MemberConfig]()
		c.Group = group
		assert.NoError(t, c.Validate())
		c.Complete("/tandem/workers")
		assert.True(t, c.Group == want && c.Shares() != (group == "off"), "%s is %s, shares: %v", group, c.Group, c.Shares())
	}
	for _, group := range []string{"a.b", "a b", "*", strings.Repeat("g", 65)} {
		c := setting.Default[MemberConfig]()
		c.Group = group
		err := c.Validate()
		assert.True(t, err != nil && strings.Contains(err.Error(), "replica-group"), "%q: %v", group, err)
	}
}
