package member

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/load"
	"github.com/tandem-pd/tandem/router/replica"
)

// small is how many blocks a worker has whose last room is asked for.
const small = 100

// known is what a gateway's routers ask of the others.
type known struct{ g *gateway }

func (k known) Unseen(p *pools.Pool) float64 { return k.g.member.UnseenIn(p) }
func (k known) Delay() time.Duration         { return k.g.member.Delay() }
func (k known) Group() *router.Group         { return k.g.member.Among() }
func (k known) CutOff() bool                 { return k.g.member.CutOff() }
func (k known) Asks(peer string) bool        { return k.g.member.Asks(peer) }

// cuttable is a link over which nothing passes while it is cut.
type cuttable struct {
	Link
	cut atomic.Bool
}

func (c *cuttable) Connected() bool { return !c.cut.Load() && c.Link.Connected() }

// reserve books so many blocks of a worker, and asks nothing yet.
func (g *gateway) reserve(worker string, blocks int) (*router.Lease, error) {
	g.turn++
	req := router.Request{ID: fmt.Sprint(g.turn), ISL: 16 * blocks, Pin: &router.Pin{Worker: worker}}
	return g.routers.For("m", pools.Both).Reserve(g.pool, req, time.Now())
}

// take books so many blocks as a request does: nil where there is no room, or its owner has refused.
func (g *gateway) take(worker string, blocks int) *router.Lease {
	l, err := g.reserve(worker, blocks)
	if err != nil && !errors.Is(err, router.ErrNoRoom) {
		g.t.Error(err)
	}
	if err != nil || !g.member.Ask(context.Background(), l) {
		return nil
	}
	return l
}

// blocks is how many of a worker's are booked, by all gateways as far as this one knows.
func (g *gateway) blocks(worker string) int {
	for _, l := range g.routers.For("m", pools.Both).Loads(g.pool) {
		if l.Worker == worker {
			return l.ActiveBlocks
		}
	}
	return 0
}

// acquaint waits until each of the gateways knows all others.
func acquaint(names int, gateways ...*gateway) {
	for _, g := range gateways {
		g.eventually("it knows the others", func() bool {
			s := g.member.seen()
			return s != nil && len(s.group.Names) == names && len(s.owners) == names-1
		})
	}
}

// overshoots has three gateways grant the last room of a worker in one moment, so many times, and returns how often it was granted.
func overshoots(t *testing.T, reserve string, tries int) (granted int, asked Asked) {
	server := startNATS(t, 0)
	gateways := []*gateway{joinAs(t, server.URL(), "a", reserve), joinAs(t, server.URL(), "b", reserve), joinAs(t, server.URL(), "c", reserve)}
	acquaint(3, gateways...)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for try := range tries {
		worker := fmt.Sprintf("w%02d", rng.IntN(workers))
		before := gateways[rng.IntN(3)]
		var full *router.Lease
		before.eventually("it is filled but for the last room", func() bool { full = before.take(worker, small-10); return full != nil })
		for _, g := range gateways {
			g.eventually("all know it", func() bool { return g.blocks(worker) == small-10 })
		}
		var leases [3]*router.Lease
		var at sync.WaitGroup
		begin := make(chan struct{})
		for i, g := range gateways {
			at.Go(func() {
				<-begin
				leases[i] = g.take(worker, 9)
			})
		}
		close(begin)
		at.Wait()
		n := 0
		for _, l := range leases {
			if l != nil {
				n++
				l.Release(time.Now())
			}
		}
		if granted += n; reserve == byOwner && n != 1 {
			t.Fatalf("try %d: the last room of %s was granted %d times", try, worker, n)
		}
		full.Release(time.Now())
		for _, g := range gateways {
			g.eventually("all has ended", func() bool { return g.blocks(worker) == 0 })
		}
	}
	for _, g := range gateways {
		a := g.member.Asked()
		asked.Granted, asked.Refused, asked.Silent, asked.Skipped = asked.Granted+a.Granted, asked.Refused+a.Refused, asked.Silent+a.Silent, asked.Skipped+a.Skipped
	}
	return granted, asked
}

// TestTheLastRoomIsGrantedOnce, however many ask for it, and whatever the owner itself books meanwhile. Without questions it
// is granted more often, or the test shows nothing.
func TestTheLastRoomIsGrantedOnce(t *testing.T) {
	t.Parallel()
	const tries = 60
	if n, asked := overshoots(t, byOwner, tries); n != tries || asked.Granted == 0 || asked.Refused == 0 || asked.Silent+asked.Skipped > 0 {
		t.Errorf("granted %d times in %d tries, asked %+v", n, tries, asked)
	}
	n, asked := overshoots(t, "optimistic", tries)
	t.Logf("without questions the last room was granted %d times in %d tries", n, tries)
	if n <= tries || asked != (Asked{}) {
		t.Errorf("without questions granted %d times in %d tries, asked %+v: this test cannot fail", n, tries, asked)
	}
}

// stranger is another gateway of the group whose answers a test decides.
type stranger struct {
	t       *testing.T
	link    Link
	peers   *replica.Peers
	over    atomic.Bool
	hearing sync.Mutex // held while it answers
	gone    bool       // the test is over: it answers no more
}

func (*stranger) Hear(string, string, pools.Role, []load.Shared, time.Time) {}
func (*stranger) HearSent(replica.SlotSent, time.Time)                      {}
func (*stranger) HearOpened(string, replica.Slot)                           {}
func (*stranger) HearHeads(string, string, []replica.Head, time.Time)       {}
func (*stranger) HearBound(replica.PoolBound, time.Time)                    {}
func (s *stranger) Overbooked(replica.Slot) bool                            { return s.over.Load() }

// send sends the gateway a an answer.
func (s *stranger) send(a replica.Answer) {
	cfg := Config{Group: "tandem_workers"}
	if err := s.link.Publish(&nats.Msg{Subject: cfg.answered("b", "a"), Data: a.Append(nil)}); err != nil {
		s.t.Error(err)
	}
}

// meet starts the stranger b and a gateway a that knows it, and returns a worker that is b's and nearly full.
func meet(t *testing.T, answer func(s *stranger, e replica.Effect)) (s *stranger, a *gateway, worker string) {
	t.Helper()
	server := startNATS(t, 0)
	a = joinAs(t, server.URL(), "a", byOwner)
	conn, err := nats.Connect(server.URL(), nats.NoEcho())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	s = &stranger{t: t, link: natsbus.OverNATS(conn, natsbus.PendingLimits{}, nil)}
	own := replica.NewOwn("b", 1)
	s.peers = replica.NewPeers(replica.Config{}, own, s, time.Now())
	stop, err := s.link.Subscribe(a.member.cfg.said(anyone), func(m *nats.Msg) {
		s.hearing.Lock()
		defer s.hearing.Unlock()
		if s.gone {
			return
		}
		do, err := s.peers.Hear(a.member.cfg.sender(m.Subject), m.Data, time.Now(), nil)
		if err != nil {
			t.Error(err)
		}
		for _, e := range do {
			if e.Do == replica.Reply && answer != nil {
				answer(s, e)
			}
		}
	}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() {
		ticks := time.Tick(50 * time.Millisecond)
		for s.link.Publish(&nats.Msg{Subject: a.member.cfg.said("b"), Data: own.Beat(answers(t), 0, nil)}) == nil {
			select {
			case <-ticks:
			case <-done:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(done)
		beats.Wait()
		stop()
		s.hearing.Lock()
		s.gone = true
		s.hearing.Unlock()
	})
	acquaint(2, a)
	for _, m := range a.pool.Members {
		l, err := a.reserve(m.Worker.ID, small-2)
		if err != nil {
			t.Fatal(err)
		}
		if l.Release(time.Now()); l.Question != nil && l.Question.Owner == "b" {
			return s, a, m.Worker.ID
		}
	}
	t.Fatal("no worker is b's")
	return nil, nil, ""
}

// TestASilentOwnerCostsFiveMilliseconds: then the booking stands, and for a while it is asked nothing.
func TestASilentOwnerCostsFiveMilliseconds(t *testing.T) {
	_, a, worker := meet(t, nil)
	a.member.patience = answerWithin
	l, err := a.reserve(worker, small-2)
	if err != nil || l.Question == nil {
		t.Fatalf("%+v, %v", l, err)
	}
	began := time.Now()
	stands := a.member.Ask(t.Context(), l)
	if took := time.Since(began); !stands || took < answerWithin || took > time.Second {
		t.Errorf("stands %v after %v", stands, took)
	}
	if got := a.member.Asked(); got != (Asked{Silent: 1}) {
		t.Errorf("asked %+v", got)
	}
	if a.blocks(worker) != small-2 {
		t.Error("what stands is not booked")
	}
	l.Release(time.Now())
	if l, err = a.reserve(worker, small-2); err != nil || l.Question != nil && time.Since(began) < mutedFor {
		t.Errorf("%+v, %v: it is asked again at once", l, err)
	}
	l.Release(time.Now())
	a.eventually("it is asked again after a while", func() bool {
		l, err := a.reserve(worker, small-2)
		if err != nil {
			t.Fatal(err)
		}
		l.Release(time.Now())
		return l.Question != nil
	})
	if since := time.Since(began); since < mutedFor {
		t.Errorf("asked again after %v", since)
	}
}

// TestWrongAnswersCountForNothing: of others, under their own name or not, to other questions and processes, malformed and twice.
func TestWrongAnswersCountForNothing(t *testing.T) {
	t.Parallel()
	_, a, worker := meet(t, func(s *stranger, e replica.Effect) {
		right := e.Say
		for _, change := range []func(*replica.Answer){
			func(w *replica.Answer) { w.From = "c" },
			func(w *replica.Answer) { w.Epoch++ },
			func(w *replica.Answer) { w.Seq++ },
		} {
			wrong := right
			wrong.Granted = !right.Granted
			change(&wrong)
			s.send(wrong)
		}
		cfg, forged := &Config{Group: "tandem_workers"}, right
		forged.Granted = !right.Granted
		for _, msg := range []*nats.Msg{{Subject: cfg.answered("b", "a"), Data: []byte{1, 2}}, {Subject: cfg.answered("c", "a"), Data: forged.Append(nil)}} {
			if err := s.link.Publish(msg); err != nil {
				s.t.Error(err)
			}
		}
		s.send(right)
		s.send(right)
		right.Granted = !right.Granted
		s.send(right)
	})
	for range 20 {
		l := a.take(worker, small-2)
		if l == nil {
			t.Fatal("refused, though it was granted")
		}
		l.Release(time.Now())
	}
	if got := a.member.Asked(); got != (Asked{Granted: 20}) || a.member.open.Load() != 0 {
		t.Errorf("asked %+v, %d open", got, a.member.open.Load())
	}
}

// TestARefusalEndsTheBooking: the worker counts as full for a moment, then the queue is woken.
func TestARefusalEndsTheBooking(t *testing.T) {
	t.Parallel()
	s, a, worker := meet(t, func(s *stranger, e replica.Effect) { s.send(e.Say) })
	s.over.Store(true)
	if l := a.take(worker, small-2); l != nil {
		t.Fatal("it stands")
	}
	if n := a.requests(); n != 0 {
		t.Errorf("%d are booked", n)
	}
	if model := <-a.woken; model != "m" {
		t.Errorf("woke %s", model)
	}
	s.over.Store(false)
	l := a.take(worker, small-2)
	if l == nil {
		t.Fatal("refused again")
	}
	l.Release(time.Now())
	if got := a.member.Asked(); got != (Asked{Granted: 1, Refused: 1}) {
		t.Errorf("asked %+v", got)
	}
}

// TestWhoAsksMayLeave: while the owner is silent.
func TestWhoAsksMayLeave(t *testing.T) {
	t.Parallel()
	_, a, worker := meet(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	l, err := a.reserve(worker, small-2)
	if err != nil || l.Question == nil {
		t.Fatalf("%+v, %v", l, err)
	}
	asked := make(chan bool)
	go func() { asked <- a.member.Ask(ctx, l) }()
	a.eventually("the question is open", func() bool { return a.member.open.Load() == 1 })
	leave()
	if !<-asked || a.member.open.Load() != 0 || a.member.Asked() != (Asked{}) {
		t.Errorf("%d are open, asked %+v", a.member.open.Load(), a.member.Asked())
	}
	l.Release(time.Now())
}

// TestQuestionsAreBounded: the room beyond is booked as without questions.
func TestQuestionsAreBounded(t *testing.T) {
	t.Parallel()
	_, a, worker := meet(t, nil)
	var leases []*router.Lease
	for _, blocks := range []int{small - 40, 12, 12} {
		l, err := a.reserve(worker, blocks)
		if err != nil || l.Question == nil {
			t.Fatalf("%d blocks: %+v, %v", blocks, l, err)
		}
		defer func() { l.Release(time.Now()) }()
		leases = append(leases, l)
	}
	ctx, leave := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	a.member.open.Add(maxQuestions - 1) // as many requests as that ask
	asking.Go(func() { a.member.Ask(ctx, leases[0]) })
	a.eventually("it is asked", func() bool { return a.member.open.Load() == maxQuestions })
	if !a.member.Ask(ctx, leases[1]) || a.member.Asked() != (Asked{Skipped: 1}) {
		t.Errorf("one more: asked %+v", a.member.Asked())
	}
	if l, err := a.reserve(worker, 5); err != nil || l.Question != nil {
		t.Errorf("%+v, %v: a question more", l, err)
	}
	leave()
	asking.Wait()
	if n := a.member.open.Load(); n != maxQuestions-1 {
		t.Errorf("%d are open", n)
	}
}

// TestNothingIsAskedWithoutNATS: nor waited for.
func TestNothingIsAskedWithoutNATS(t *testing.T) {
	t.Parallel()
	_, a, worker := meet(t, nil)
	l, err := a.reserve(worker, small-2)
	if err != nil || l.Question == nil {
		t.Fatalf("%+v, %v", l, err)
	}
	a.link.cut.Store(true)
	if !a.member.Ask(t.Context(), l) || a.member.Asked() != (Asked{Skipped: 1}) {
		t.Errorf("asked %+v", a.member.Asked())
	}
	l.Release(time.Now())
	a.eventually("it is cut off", a.member.CutOff)
	if l, err := a.reserve(worker, small-2); err != nil || l.Question != nil {
		t.Errorf("%+v, %v", l, err)
	}
	if strings.Contains(a.logged(), "level=ERROR") {
		t.Error(a.logged())
	}
}
