package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/service"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/events"
)

func selectGroup() settings.Group {
	return settings.Group{Title: "Select", Settings: []settings.Setting{
		{Name: "select-port", Kind: settings.Int, Default: "8092", Min: "0", Max: "65535", Help: "Port to listen on; 0 picks a free one and prints it."},
		{
			Name: "reservation-ttl", Kind: settings.Duration, Default: service.DefaultReservationTTL.String(), Min: "1ms", Max: "24h",
			Help: "How long a reservation lives that nobody speaks of: prefill_complete and output_block begin it anew. Shorter frees a dead frontend's bookings " +
				"sooner; it must be longer than a prompt's wait and prefill, or a request that still runs counts as gone.",
		},
	}}
}

// selectRouterGroups are the gateway's groups of how a worker is chosen.
func selectRouterGroups() []settings.Group {
	var kept []settings.Group
	for _, g := range gatewayGroups() {
		var rows []settings.Setting
		for _, s := range g.Settings {
			if s.Name == "tokenizer-cache-bytes" {
				s.Help = "For the gateway, and without effect here: requests bring their tokens."
			}
			if g.Title == "Router" || s.Name == "router-queue-threshold" {
				rows = append(rows, s)
			}
		}
		if len(rows) > 0 {
			kept = append(kept, settings.Group{Title: g.Title, Settings: rows})
		}
	}
	return kept
}

// runSelect runs the router as a service, until SIGTERM.
func runSelect(ctx context.Context, args []string, p process) error {
	var s struct {
		Port      int           `setting:"select-port"`
		TTL       time.Duration `setting:"reservation-ttl"`
		Service   serviceSettings
		NATSURL   string `setting:"nats-url"`
		Logging   settings.Logging
		Router    settings.Router
		Threshold float64 `setting:"router-queue-threshold"`
	}
	groups := append([]settings.Group{selectGroup(), serviceGroup(), natsAlone(), settings.LoggingGroup()}, selectRouterGroups()...)
	set := settings.NewSet(groups...).Beside(besides()...)
	r, err := resolve(set, "gateway select [FLAGS]: run the router as a service, for a frontend that forwards requests itself.\n"+
		"Register a worker:   POST /workers with the record that workers put in etcd\n"+
		"Choose and book:     POST /select_and_reserve {\"id\": \"r1\", \"model\": \"m\", \"token_ids\": [1, 2, …]}\n"+
		"Say how it goes:     POST /reservations/r1/prefill_complete, POST /reservations/r1/output_block, DELETE /reservations/r1\n"+
		"Also: POST /select, /potential_loads, /overlap_scores, GET /workers, /loads, /dump, /ready, /metrics. docs/services.md shows each.", args, p, &s)
	if err != nil {
		return err
	}
	cfg, err := s.Service.config(r, p)
	if err != nil {
		return usageError{err}
	}
	base := routerBase(s.Router, s.Threshold)
	sel := service.SelectConfig{
		Routers: routersByRole(base), Pools: pools.Config{BlockSize: s.Router.KVCacheBlockSize},
		Events: events.SubscriberConfig{Seed: base.Seed}, ReservationTTL: s.TTL,
	}
	for _, c := range sel.Routers {
		if err := c.Validate(); err != nil {
			return usageError{err}
		}
	}
	if err := sel.Pools.Validate(); err != nil {
		return usageError{err}
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	return standalone(ctx, p, "select", s.Port, s.Service, s.NATSURL, log,
		func(links stack.Links, log *slog.Logger, reg *prometheus.Registry) (*service.Server, error) {
			own := prometheus.WrapRegistererWithPrefix("tandem_", reg)
			return service.NewSelect(cfg, sel, links.Bus, telemetry.Handler(reg), log, own)
		})
}
