package service

import (
	"cmp"
	"container/list"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/feed"
	"github.com/tandem-pd/tandem/router/placement"
)

// fromHTTP is the roster's source of workers registered here.
const fromHTTP = "http"

// chooser chooses and books workers for any frontend.
type chooser struct {
	log        *slog.Logger
	roster     *pools.Roster
	source     *pools.Source
	routers    *router.Set
	feed       *feed.Feed
	placer     placement.Placer
	held       *reservations
	selections *prometheus.CounterVec
	expired    prometheus.Counter
}

// SelectConfig is the settings of `gateway select`.
type SelectConfig struct {
	// Routers has one Config for each role.
	Routers map[pools.Role]router.Config
	// Pools are the roster's settings.
	Pools pools.Config
	// Events configures how KV events are followed.
	Events follow.Config
	// ReservationTTL is how long a reservation lives without a call; 0 means 5 minutes.
	ReservationTTL time.Duration
}

// NewSelect returns the service of `gateway select`. The caches of workers whose events it cannot follow are
// predicted from reservations. scrape serves /metrics.
func NewSelect(
	cfg Config, sel SelectConfig, bus wire.Bus, scrape http.Handler, log *slog.Logger, reg prometheus.Registerer,
) (*Server, error) {
	routers, err := router.NewSet(sel.Routers, log)
	if err != nil {
		return nil, err
	}
	roster, set := pools.NewRoster(sel.Pools, log), metrics.In(reg)
	c := &chooser{
		log: log, roster: roster, source: roster.From(fromHTTP), routers: routers, placer: placement.Placer{Routers: routers, Pairs: pairs},
		held: &reservations{ttl: cmp.Or(sel.ReservationTTL, 5*time.Minute), byID: map[string]*reservation{}, order: list.New()},
		selections: set.Counter("service_selections_total",
			"Selections, by outcome: reserved (booked), selected (answered and not booked) or refused.", "outcome"),
		expired: set.Counter("service_reservations_expired_total",
			"Reservations that ended because no call renewed them within --reservation-ttl.").WithLabelValues(),
	}
	group := set.Snapshot()
	open := group.Gauge("service_reservations", "Open reservations.")
	group.Read(func() { open.Set(float64(c.held.open())) })
	feed.ExportIndexes(reg, func(emit feed.EmitIndex) { routers.IndexStats(roster.Pools(), emit) })
	c.feed = feed.New(feed.Config{Events: sel.Events}, bus, roster, routers, log, reg)
	return newServer(cfg, c, scrape, log, reg), nil
}

func (c *chooser) routes(s *Server) {
	s.handle("POST /workers", small, c.addWorker)
	s.handle("GET /workers", small, c.listWorkers)
	s.handle("DELETE /workers/{id}", small, c.removeWorker)
	s.handle("POST /select", large, c.choose)
	s.handle("POST /select_and_reserve", large, c.reserve)
	s.handle("POST /reservations/{id}/prefill_complete", small, c.prefillComplete)
	s.handle("POST /reservations/{id}/output_block", small, c.outputBlock)
	s.handle("DELETE /reservations/{id}", small, c.release)
	s.handle("GET /loads", small, c.loads)
	s.handle("POST /potential_loads", large, c.potentialLoads)
	s.handle("POST /overlap_scores", large, c.overlapScores)
}

func (c *chooser) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.roster.Run(ctx) })
	group.Go(func() error { return c.feed.Run(ctx) })
	group.Go(func() error { return c.expire(ctx) })
	return group.Wait()
}

// expire ends reservations without a recent call.
func (c *chooser) expire(ctx context.Context) error {
	timer := time.NewTimer(c.held.ttl)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		ended, next := c.held.expire(time.Now())
		if ended > 0 {
			c.expired.Add(float64(ended))
			c.log.Warn("reservations expired without a release", "reservations", ended)
		}
		timer.Reset(time.Until(next))
	}
}

// choose returns a choice without booking it.
func (c *chooser) choose(r *http.Request) (int, any, error) {
	q, fleet, err := c.read(r, false)
	if err != nil {
		return 0, nil, err
	}
	placed, err := c.placer.Pick(fleet, q.ask(fleet, q.want(fleet)), time.Now())
	if err != nil {
		c.selections.WithLabelValues("refused").Inc()
		return 0, nil, refusal(err)
	}
	c.selections.WithLabelValues("selected").Inc()
	return http.StatusOK, struct {
		Legs []leg `json:"legs"`
	}{legsOf(&placed)}, nil
}

func (c *chooser) reserve(r *http.Request) (int, any, error) {
	q, fleet, err := c.read(r, true)
	if err != nil {
		return 0, nil, err
	}
	if !c.held.claim(q.ID) {
		return 0, nil, conflict("duplicate_id", "id", "a reservation of this id is open")
	}
	now, ask := time.Now(), q.ask(fleet, q.want(fleet))
	placed, err := c.placer.Book(fleet, ask, nil, now)
	if err != nil {
		c.held.giveUp(q.ID)
		c.selections.WithLabelValues("refused").Inc()
		return 0, nil, refusal(err)
	}
	c.held.keep(&reservation{id: q.ID, leases: placed.Leases()}, now)
	c.selections.WithLabelValues("reserved").Inc()
	return http.StatusCreated, struct {
		ID      string  `json:"id"`
		Seconds float64 `json:"expires_in_seconds"`
		Legs    []leg   `json:"legs"`
	}{q.ID, c.held.ttl.Seconds(), legsOf(&placed)}, nil
}

func (c *chooser) prefillComplete(r *http.Request) (int, any, error) {
	return c.noted(c.held.prefillComplete(r.PathValue("id"), time.Now()))
}

func (c *chooser) outputBlock(r *http.Request) (int, any, error) {
	body := struct {
		Blocks int `json:"blocks"`
	}{1}
	if err := decode(r.Body, &body, true); err != nil {
		return 0, nil, err
	}
	if body.Blocks < 1 || body.Blocks > pools.MaxCount {
		return 0, nil, invalid("blocks", "must be 1 to %d", pools.MaxCount)
	}
	return c.noted(c.held.grow(r.PathValue("id"), body.Blocks, time.Now()))
}

func (c *chooser) release(r *http.Request) (int, any, error) {
	return c.noted(c.held.release(r.PathValue("id"), time.Now()))
}

// noted answers a call about a reservation.
func (c *chooser) noted(known bool) (int, any, error) {
	if !known {
		return 0, nil, &openai.Error{Status: http.StatusNotFound, Code: "unknown_reservation", Param: "id",
			Message: "no such reservation is open: it was released, or expired"}
	}
	return http.StatusNoContent, nil, nil
}

// pairs reports why two workers cannot hand over.
func pairs(p, d *pools.Worker) error {
	_, err := connector.Between(p, d)
	return err
}
