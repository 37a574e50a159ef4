package service

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
)

// DefaultReservationTTL is how long a reservation lives that nobody speaks of
// (the reference's DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS).
const DefaultReservationTTL = 300 * time.Second

// fromHTTP is the roster's source of workers that are registered here.
const fromHTTP = "http"

// chooser chooses and books workers for any frontend.
type chooser struct {
	log        *slog.Logger
	roster     *pools.Roster
	source     *pools.Source
	routers    *router.Set
	follow     *follow
	held       *reservations
	wake       chan struct{} // holds at most one: a deadline was restored
	selections *prometheus.CounterVec
	expired    prometheus.Counter
}

// SelectConfig is how `gateway select` chooses.
type SelectConfig struct {
	// Routers has one Config for each role.
	Routers map[pools.Role]router.Config
	// Pools are the roster's settings.
	Pools pools.Config
	// Events is how KV events are followed.
	Events events.SubscriberConfig
	// ReservationTTL is how long a reservation lives from when it was last spoken
	// of; 0 means [DefaultReservationTTL].
	ReservationTTL time.Duration
}

// NewSelect returns the service of `gateway select`. What workers hold that publish
// nothing, or over NATS where there is no bus, is predicted from what was reserved on
// them. metrics answers /metrics.
func NewSelect(cfg Config, sel SelectConfig, bus events.Bus, metrics http.Handler, log *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	if sel.ReservationTTL < 0 {
		return nil, errors.New("reservation-ttl: must not be negative")
	}
	if sel.ReservationTTL == 0 {
		sel.ReservationTTL = DefaultReservationTTL
	}
	routers, err := router.NewSet(sel.Routers, log)
	if err != nil {
		return nil, err
	}
	roster := pools.NewRoster(sel.Pools, log)
	c := &chooser{
		log: log, roster: roster, source: roster.From(fromHTTP), routers: routers,
		held: newReservations(sel.ReservationTTL), wake: make(chan struct{}, 1),
		selections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "service_selections_total", Help: "Choices made, by whether they were booked (reserved), only told (selected) or refused.",
		}, []string{"outcome"}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "service_reservations_expired_total", Help: "Reservations that ended because nobody spoke of them within reservation-ttl.",
		}),
	}
	reg.MustRegister(c.selections, c.expired, indexSize(routers.IndexStats), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "service_reservations", Help: "Reservations that are open.",
	}, func() float64 { return float64(c.held.open()) }))
	c.follow = &follow{roster: roster, routers: routers, nats: bus != nil, log: log, doubted: map[string]string{}}
	sel.Events.OnState = c.follow.changed
	if c.follow.subscriber, err = events.NewSubscriber(sel.Events, bus, c.indexFor, log, reg); err != nil {
		return nil, err
	}
	roster.OnChange(c.follow.update)
	return newServer(cfg, c, metrics, log, reg), nil
}

func (c *chooser) name() string { return "select" }

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
	s.endpoint("GET /dump", small, c.dump)
}

func (c *chooser) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.roster.Run(ctx) })
	group.Go(func() error { return c.follow.subscriber.Run(ctx) })
	group.Go(func() error { return c.expire(ctx) })
	return group.Wait()
}

// expire ends what nobody speaks of any more.
func (c *chooser) expire(ctx context.Context) error {
	timer := time.NewTimer(c.held.ttl)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-timer.C:
		}
		ended, next := c.held.expire(time.Now())
		if ended > 0 {
			c.expired.Add(float64(ended))
			c.log.Warn("reservations expired: their frontend is gone, or never released them", "reservations", ended)
		}
		timer.Reset(time.Until(next))
	}
}

// choose tells the choice, and books nothing.
func (c *chooser) choose(r *http.Request) (int, any, error) {
	q, pools, err := c.read(r, false)
	if err != nil {
		return 0, nil, err
	}
	answer := struct {
		Legs []leg `json:"legs"`
	}{}
	for i, p := range pools {
		req := q.request(p)
		if i > 0 {
			req.Pin = req.DecodePin
		}
		w, why, err := c.routers.For(p.Model, p.Role).Pick(p, req, time.Now())
		if err != nil {
			c.selections.WithLabelValues("refused").Inc()
			return 0, nil, refusal(err)
		}
		answer.Legs = append(answer.Legs, legOf(p.Role, w.Worker, w.Rank, why, 0))
	}
	c.selections.WithLabelValues("selected").Inc()
	return http.StatusOK, answer, nil
}

// reserve chooses and books.
func (c *chooser) reserve(r *http.Request) (int, any, error) {
	q, ps, err := c.read(r, true)
	if err != nil {
		return 0, nil, err
	}
	if !c.held.claim(q.ID) {
		return 0, nil, &Error{Status: http.StatusConflict, Code: "duplicate_id", Param: "id", Message: "a reservation of this id is open"}
	}
	now := time.Now()
	res := &reservation{id: q.ID, model: q.Model, promptTokens: q.PromptTokens, chain: q.request(ps[0]).Hashes}
	if res.legs, err = c.book(q, ps, now); err != nil {
		c.held.giveUp(q.ID)
		c.selections.WithLabelValues("refused").Inc()
		return 0, nil, refusal(err)
	}
	c.held.keep(res, now.Add(c.held.ttl))
	c.selections.WithLabelValues("reserved").Inc()
	answer := struct {
		ID      string  `json:"id"`
		Seconds float64 `json:"expires_in_seconds"`
		Legs    []leg   `json:"legs"`
	}{ID: q.ID, Seconds: c.held.ttl.Seconds()}
	for _, l := range res.legs {
		answer.Legs = append(answer.Legs, legOf(l.role, l.lease.Worker, l.lease.Rank, l.lease.Why, l.lease.PrefillTokens))
	}
	return http.StatusCreated, answer, nil
}

// book books the legs of a request, all or none.
func (c *chooser) book(q *selection, ps []*pools.Pool, now time.Time) ([]leased, error) {
	req := q.request(ps[0])
	first := c.routers.For(q.Model, ps[0].Role)
	if len(ps) == 1 {
		l, err := first.Reserve(ps[0], req, now)
		return []leased{{ps[0].Role, l}}, err
	}
	second := c.routers.For(q.Model, ps[1].Role)
	p, d, err := router.ReservePair(first, second, c.routers.Pairer(q.Model), ps[0], ps[1], req, now)
	return []leased{{ps[0].Role, p}, {ps[1].Role, d}}, err
}

func (c *chooser) prefillComplete(r *http.Request) (int, any, error) {
	return c.told(c.held.prefillComplete(r.PathValue("id"), time.Now()))
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
	return c.told(c.held.grow(r.PathValue("id"), body.Blocks, time.Now()))
}

func (c *chooser) release(r *http.Request) (int, any, error) {
	return c.told(c.held.release(r.PathValue("id"), time.Now()))
}

// told answers what was told of a reservation.
func (c *chooser) told(known bool) (int, any, error) {
	if !known {
		return 0, nil, &Error{Status: http.StatusNotFound, Code: "unknown_reservation", Param: "id", Message: "no such reservation is open: it was released, or expired"}
	}
	return http.StatusNoContent, nil, nil
}
