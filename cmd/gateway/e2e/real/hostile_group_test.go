package real

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
	"github.com/tandem-pd/tandem/router/replica/member"
)

// sharing is a gateway's routers, and its membership in a group.
type sharing struct {
	*member.Member
	pool    *pools.Pool
	routers *router.Set
}

// join makes a gateway of a host a member.
func (h *hostile) join(host string, log *slog.Logger) *sharing {
	h.t.Helper()
	group, err := stack.JoinGroup(h.discovery(host), certs.NewStore(0, log), log)
	if err != nil {
		h.t.Fatal(err)
	}
	s := &sharing{pool: &pools.Pool{Model: "m", Role: pools.Both, Members: []pools.Member{{Worker: &pools.Worker{ID: "w", BlockSize: 16, TotalKVBlocks: 1000}}}}}
	base := router.DefaultConfig()
	base.OnBooking = func(made bool) { s.Booked(made) }
	if s.routers, err = router.NewSet(base.ByRole(), log); err != nil {
		h.t.Fatal(err)
	}
	cfg := setting.Default[member.Config]()
	cfg.Complete("/tandem/workers")
	cfg.Name = host + ":8000"
	s.Member = member.New(cfg, group, member.Rooms{
		Routers: s.routers, Pool: func(string, pools.Role) *pools.Pool { return s.pool }, Wake: func(string) {}, Warn: func(string, pools.Role) {},
		Heads: func() []replica.Head { return nil }, Hear: func(string, string, []replica.Head) bool { return false },
		Addr: func() string { return "127.0.0.1:1" },
	}, log)
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error)
	go func() { left <- s.Run(ctx) }()
	h.t.Cleanup(func() {
		leave()
		if err := <-left; err != nil {
			h.t.Error(err)
		}
		group.Close()
	})
	return s
}

// book books the worker, and returns the end of that.
func (s *sharing) book(t *testing.T) (release func()) {
	t.Helper()
	l, err := s.routers.For("m", pools.Both).Reserve(s.pool, router.Request{ID: "1", ISL: 160}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return func() { l.Release(time.Now()) }
}

// requests is how many are on the worker, of all members as far as this one knows.
func (s *sharing) requests() int { return s.routers.For("m", pools.Both).Loads(s.pool)[0].Requests }

// whole reports whether this member knows all that n others have booked.
func (s *sharing) whole(n int) bool {
	known := 0
	for _, p := range s.Peers() {
		if p.State == "whole" {
			known++
		}
	}
	return known == n
}

// Two gateways with what the shipped nats.conf lets a gateway do are a group: what one has booked the other knows, from before it
// joined and from then on, and its end. A certificate lets a gateway publish under its own name alone, and a worker neither say nor hear anything of that.
func TestGroupAmongOthers(t *testing.T) {
	h := newHostile(t)
	f := &fleet.Fleet{T: t, Logs: &fleet.LogBuffer{}}
	log := slog.New(slog.NewTextHandler(f.Logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a := h.join("gateway-1", log)
	ends := a.book(t) // before there is another one: it has to ask for this
	b := h.join("gateway-2", log)
	f.Eventually("each knows what the other has booked", func() bool { return a.whole(1) && b.whole(1) && b.requests() == 1 })
	also := b.book(t)
	f.Eventually("a hears of a booking", func() bool { return a.requests() == 2 })
	ends()
	f.Eventually("b hears of its end", func() bool { return b.requests() == 1 })

	const own, first, second = "tandem.replica.tandem_workers.", "gateway-1:8000", "gateway-2:8000"
	for _, c := range []struct{ does, subject, who string }{ // whom alone NATS lets
		{"publish", own + first + ".say", "gateway-1"},
		{"publish", own + second + ".say", "gateway-2"},
		{"publish", own + first + ".ask." + second, "gateway-1"},
		{"publish", own + "gateway-3:8000.ask." + second, ""},
		{"publish", own + "say", ""},
		{"publish", "tandem.replica.other." + first + ".say", ""},
		{"subscribe", own + "*.ask." + first, "gateway-1"},
		{"subscribe", own + "*.views." + second, "gateway-2"},
		{"subscribe", own + "*.say", "gateway-1 gateway-2"},
		{"subscribe", own + "*.ask.*", ""},
		{"subscribe", own + ">", ""},
	} {
		for _, who := range []string{"gateway-1", "gateway-2", "prefill-1", "decode-1"} {
			if err := h.try(who, c.does, c.subject); (err == nil) != strings.Contains(c.who, who) {
				t.Errorf("%s may %s %s: %v, want %q alone to", who, c.does, c.subject, err, c.who)
			}
		}
	}
	// Neither as the answer to a question that was never asked.
	if err := h.try("prefill-1", "publish", nats.NewInbox()); err == nil {
		t.Error("a worker answers what it was not asked")
	}
	stranger := &fleet.Fleet{T: t, Logs: &fleet.LogBuffer{}}
	h.join("prefill-1", slog.New(slog.NewTextHandler(stranger.Logs, nil)))
	stranger.Eventually("its log has what NATS refuses", func() bool { return strings.Contains(stranger.Logs.String(), "NATS refuses a subject") })
	also()
	f.Eventually("nothing is booked", func() bool { return a.requests() == 0 && b.requests() == 0 })
	if n := a.Counts().Malformed + b.Counts().Malformed - 4; n != 0 || strings.Contains(f.Logs.String(), "refuses a subject") { // two empty ones at each
		t.Errorf("%d more messages than sent are malformed, or some are refused\n%s", n, f.Logs)
	}
}
