package main

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

type selectSettings struct {
	Port    int              `flag:"select-port" default:"8092" range:"0..65535" group:"Select" help:"Port to listen on; 0 picks one."`
	TTL     time.Duration    `flag:"reservation-ttl" default:"5m" range:"1ms..24h" group:"Select" help:"How long a reservation lives without prefill_complete or output_block. Keep it longer than a prompt's wait and prefill."`
	Service serviceSettings  `group:"Service"`
	NATSURL string           `flag:"nats-url" group:"Events"`
	NATS    stack.NATSAccess `group:"Events"`
	Logging observe.Logging  `group:"Logging"`
	Router  router.Config    `group:"Router"`
	Pools   pools.Config
}

// runSelect runs the router as a service, until SIGTERM.
func runSelect(ctx context.Context, args []string, p process) error {
	var s selectSettings
	r, err := resolve(&s, "select", args, p)
	if err != nil {
		return err
	}
	cfg, err := s.Service.config(r)
	if err != nil {
		return &setting.Error{Err: err}
	}
	if err := errors.Join(s.Router.Validate(), s.Pools.Validate()); err != nil {
		return r.Placed(err)
	}
	s.Router.Seed = cmp.Or(s.Router.Seed, rand.Uint64())
	sel := service.SelectConfig{
		Routers: s.Router.ByRole(), Pools: s.Pools, Events: follow.Config{Seed: s.Router.Seed}, ReservationTTL: s.TTL,
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	return standalone(ctx, p, "select", s.Port, s.Service, stack.Discovery{NATSURL: s.NATSURL, NATSAccess: s.NATS}, log,
		func(bus wire.Bus, scrape http.Handler, own prometheus.Registerer) (*service.Server, error) {
			return service.NewSelect(cfg, sel, bus, scrape, log, own)
		})
}
