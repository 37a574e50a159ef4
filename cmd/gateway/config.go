package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/edge"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/remote"
)

// config prints the gateway's settings. Its output is a file for --config.
func config(_ context.Context, args []string, p process) error {
	set := settings.NewSet(gatewayGroups()...).Beside(besides()...)
	var s settings.Gateway
	r, err := resolve(set, "gateway config [FLAGS]: print every setting in force as `name: value  # source`.", args, p, &s)
	if err != nil {
		return err
	}
	if _, err := gatewayConfig(s); err != nil {
		return usageError{err}
	}
	for _, name := range r.UnknownVariables() {
		fmt.Fprintf(p.stderr, "%s is no setting here and is passed over\n", name)
	}
	return r.Print(p.stdout)
}

// gatewayGroups is the gateway's table, with the names that rooms register.
func gatewayGroups() []settings.Group {
	var c settings.Choices
	for _, p := range router.Policies() {
		c.RouterModes = append(c.RouterModes, settings.Choice{Name: p.Name, Help: p.Help})
	}
	for _, name := range queue.Orders() {
		c.QueuePolicies = append(c.QueuePolicies, settings.Choice{Name: name, Help: queue.Help(name)})
	}
	return settings.GatewayGroups(c)
}

// besides is the table of every command: one environment and one file may serve
// them all, so each passes over what is another's.
func besides() []settings.Group {
	return slices.Concat(gatewayGroups(), loadGroups(), attachGroups(), []settings.Group{devGroup(), serveGroup(), workerGroup(), workersGroup(), healthGroup(), serviceGroup(), indexGroup(), selectGroup()})
}

// streamConfig is the stream that KV events are kept in; nil for none.
func streamConfig(s settings.KVStream) *events.StreamConfig {
	if !s.Durable {
		return nil
	}
	return &events.StreamConfig{MaxAge: s.MaxAge, MaxBytes: s.MaxBytes}
}

// gatewayConfig gives each room its part of the settings.
func gatewayConfig(s settings.Gateway) (stack.GatewayConfig, error) {
	base := routerBase(s.Router, s.Queue.Threshold)
	if !s.KVEvents.Parity {
		base.Parity = router.ParityConfig{}
	}
	roles := routersByRole(base)
	if s.KVEvents.PredictAfter < s.KVEvents.SilentAfter {
		return stack.GatewayConfig{}, fmt.Errorf("kv-events-predict-after: %v is below kv-events-silent-after, %v", s.KVEvents.PredictAfter, s.KVEvents.SilentAfter)
	}
	given, err := workersConfig(s.Workers, s.Router, base.Seed)
	if err != nil {
		return stack.GatewayConfig{}, err
	}
	c := stack.GatewayConfig{
		Workers: given,
		Edge:    edge.DefaultConfig(),
		Pools: pools.Config{
			BlockSize: s.Router.KVCacheBlockSize,
		},
		Flow: handoff.Config{
			DecodeFallback: s.Faults.DecodeFallback,
			Seed:           uint64(s.Router.Seed),
			LogBlocks:      s.Requests.Blocks,
			LogRouting:     s.Requests.Routing,
			Utilization:    s.Metrics.DesiredUtilization,
			Queue:          queue.Config{Policy: s.Queue.Policy, Limit: s.Queue.Limit, Timeout: s.Queue.Timeout, Bytes: s.Queue.Bytes},
		},
		Prefill: prefill.Config{Timeout: s.Faults.PrefillTimeout},
		Decode:  decode.Config{StreamIdleTimeout: s.Faults.StreamIdleTimeout, FirstTokenTimeout: s.Faults.DecodeFirstTokenTimeout},
		Routers: roles,
		Events: events.SubscriberConfig{
			Seed: base.Seed, SilentAfter: s.KVEvents.SilentAfter, PredictAfter: s.KVEvents.PredictAfter, Relearn: base.Predictions.TTL,
		},
		Retell:              s.KVEvents.ReportMode == "auto",
		Remote:              remote.Config{URLs: s.Remote.URLs, Timeout: s.Remote.Timeout},
		Prefix:              s.Discovery.Prefix,
		LeaseTTL:            s.Discovery.LeaseTTL,
		TokenizerCacheBytes: s.Router.TokenizerCacheBytes,
		MetricsPrefix:       settings.MetricsPrefix(s.Metrics.Prefix),
		Build:               telemetry.ReadBuild(version),
		Grace:               s.HTTP.ShutdownGrace,
		Drain:               s.HTTP.DrainTimeout,
	}
	c.Edge.Host, c.Edge.Port = s.HTTP.Host, s.HTTP.Port
	c.Edge.APIKeyFile, c.Edge.AdminKeyFile, c.Edge.AdminAddress = s.Admin.APIKeyFile, s.Admin.AdminKeyFile, s.Admin.Address
	c.Edge.ClientHints = s.Admin.ClientHints
	c.Edge.ForwardHeaders = s.HTTP.ForwardHeaders
	c.Edge.MaxBodyBytes, c.Edge.BodyBudgetBytes = int(s.HTTP.MaxBodyBytes), s.HTTP.BodyBudgetBytes
	c.Edge.MaxConnections, c.Edge.AllowedHosts = s.HTTP.MaxConnections, s.HTTP.AllowedHosts
	c.Edge.ReadTimeout, c.Edge.IdleTimeout = s.HTTP.ReadTimeout, s.HTTP.IdleTimeout
	c.Edge.WriteStall, c.Edge.Heartbeat = s.HTTP.WriteStallTimeout, s.HTTP.SSEHeartbeat
	return c, validate(c)
}

// routerBase is how a worker is chosen, for [router.Config.For] to make of it
// what each role needs. Without a seed it draws one.
func routerBase(s settings.Router, queueThreshold float64) router.Config {
	base := router.DefaultConfig()
	base.Mode = s.Mode
	base.OverlapWeight = s.OverlapScoreWeight
	base.Cost = s.Cost
	base.Credit = router.Credit{
		Overlap: s.Credit, Decay: s.CreditDecay, Host: s.HostWeight, Disk: s.DiskWeight,
		Shared: s.SharedMultiplier, PrefillScale: s.PrefillScale, ActiveRequests: s.RequestWeight,
	}
	base.TrackOutputBlocks = s.TrackOutputBlocks
	base.PrefillLoad = s.PrefillLoadModel
	base.Thresholds = router.Thresholds{DecodeBlocks: s.DecodeThreshold, PrefillTokens: s.PrefillThreshold}
	base.Temperature = s.Temperature
	base.GPUWeight = s.CUDAToCPURatio
	base.TrackPrefillTokens = s.TrackPrefillTokens
	base.QueueThreshold = queueThreshold
	base.KVEvents = s.KVEvents
	base.Predictions = index.PredictorConfig{
		TTL:       time.Duration(s.TTLSeconds * float64(time.Second)),
		MaxBlocks: s.MaxTreeSize, PruneRatio: s.PruneTargetRatio, LRU: s.ApproximatePolicy == "lru",
	}
	base.PredictedTTL = time.Duration(s.PredictedTTLSeconds * float64(time.Second))
	base.IndexMaxBlocks = s.IndexMaxBlocks
	base.Seed = cmp.Or(uint64(s.Seed), rand.Uint64())
	return base
}

// routersByRole is base for each role.
func routersByRole(base router.Config) map[pools.Role]router.Config {
	roles := map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		roles[role] = base.For(role)
	}
	return roles
}

// validate asks each room before anything is started.
func validate(c stack.GatewayConfig) error {
	for _, check := range []func() error{c.Edge.Validate, c.Pools.Validate, c.Flow.Queue.Validate, c.Prefill.Validate, c.Decode.Validate} {
		if err := check(); err != nil {
			return err
		}
	}
	for _, role := range c.Routers {
		if err := role.Validate(); err != nil {
			return err
		}
	}
	if hints, _ := edge.ParseHints(c.Edge.ClientHints, c.Edge.APIKeyFile != ""); !hints.All && c.Edge.AdminKeyFile == "" &&
		router.Canonical(c.Routers[pools.Both].Mode) == "direct" {
		return errors.New("router-mode: direct serves only requests that name a worker, and client-hints keeps clients from it: " +
			"set client-hints to all, or admin-key-file for the keys of those who may")
	}
	if c.Drain < 0 || c.Drain > 24*time.Hour {
		return fmt.Errorf("drain-timeout: %v is not between 0s and 24h", c.Drain)
	}
	return nil
}
