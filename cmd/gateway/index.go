package main

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/service"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/router/events"
)

func indexGroup() settings.Group {
	return settings.Group{Title: "Index", Settings: []settings.Setting{
		settings.KVIndexMaxBlocks(),
		{Name: "index-port", Kind: settings.Int, Default: "8090", Min: "0", Max: "65535", Help: "Port to listen on; 0 picks a free one and prints it."},
	}}
}

// runIndex runs an index that several routers share, until SIGTERM.
func runIndex(ctx context.Context, args []string, p process) error {
	var s struct {
		Port    int `setting:"index-port"`
		Blocks  int `setting:"kv-index-max-blocks"`
		Service serviceSettings
		NATSURL string `setting:"nats-url"`
		Logging settings.Logging
	}
	set := settings.NewSet(indexGroup(), serviceGroup(), natsAlone(), settings.LoggingGroup()).Beside(besides()...)
	r, err := resolve(set, "gateway index [FLAGS]: run an index of which worker holds which KV blocks, for several routers to share.\n"+
		"Register a worker:   POST /register {\"id\": \"w1\", \"model\": \"m\", \"block_size\": 16, \"kv_events\": \"nats\"}\n"+
		"Ask for a prompt:    POST /query {\"model\": \"m\", \"token_ids\": [1, 2, …]}, or POST /query_by_hash\n"+
		"Without NATS:        POST /events\n"+
		"Also: POST /unregister, GET /workers, GET /dump, GET /ready, GET /metrics. docs/services.md shows each.", args, p, &s)
	if err != nil {
		return err
	}
	cfg, err := s.Service.config(r, p)
	if err != nil {
		return usageError{err}
	}
	cfg.IndexMaxBlocks = s.Blocks
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	return standalone(ctx, p, "index", s.Port, s.Service, s.NATSURL, log,
		func(links stack.Links, log *slog.Logger, reg *prometheus.Registry) (*service.Server, error) {
			own := prometheus.WrapRegistererWithPrefix("tandem_", reg)
			return service.NewIndex(cfg, events.SubscriberConfig{Seed: rand.Uint64()}, links.Bus, telemetry.Handler(reg), log, own)
		})
}
