package main

import (
	"context"
	"math/rand/v2"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
)

type indexSettings struct {
	Port    int              `flag:"index-port" default:"8090" range:"0..65535" group:"Index" help:"Port to listen on; 0 picks a free one and prints it."`
	Service serviceSettings  `group:"Service"`
	NATSURL string           `flag:"nats-url" group:"Events"`
	NATS    stack.NATSAccess `group:"Events"`
	Logging observe.Logging  `group:"Logging"`
}

// runIndex runs an index for several routers until SIGTERM.
func runIndex(ctx context.Context, args []string, p process) error {
	var s indexSettings
	r, err := resolve(&s, "index", args, p)
	if err != nil {
		return err
	}
	cfg, err := s.Service.config(r)
	if err != nil {
		return &setting.Error{Err: err}
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	return standalone(ctx, p, "index", s.Port, s.Service, stack.Discovery{NATSURL: s.NATSURL, NATSAccess: s.NATS}, log,
		func(bus wire.Bus, scrape http.Handler, own prometheus.Registerer) (*service.Server, error) {
			return service.NewIndex(cfg, follow.Config{Seed: rand.Uint64()}, bus, scrape, log, own), nil
		})
}
