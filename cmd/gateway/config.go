package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/edge"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/index"
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
	return slices.Concat(gatewayGroups(), loadGroups(), []settings.Group{devGroup(), serveGroup(), workerGroup(), workersGroup(), healthGroup()})
}

// gatewayConfig gives each room its part of the settings.
func gatewayConfig(s settings.Gateway) (stack.GatewayConfig, error) {
	base := router.DefaultConfig()
	base.Mode = s.Router.Mode
	base.OverlapWeight = s.Router.OverlapScoreWeight
	base.Temperature = s.Router.Temperature
	base.GPUWeight = s.Router.CUDAToCPURatio
	base.TrackPrefillTokens = s.Router.TrackPrefillTokens
	base.QueueThreshold = s.Queue.Threshold
	base.KVEvents = s.Router.KVEvents
	base.Predictions = index.PredictorConfig{
		TTL:       time.Duration(s.Router.TTLSeconds * float64(time.Second)),
		MaxBlocks: s.Router.MaxTreeSize, PruneRatio: s.Router.PruneTargetRatio,
	}
	base.Seed = cmp.Or(uint64(s.Router.Seed), rand.Uint64())
	roles := map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		roles[role] = base.For(role)
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
			Utilization:    s.Metrics.DesiredUtilization,
			Queue:          queue.Config{Policy: s.Queue.Policy, Limit: s.Queue.Limit, Timeout: s.Queue.Timeout, Bytes: s.Queue.Bytes},
		},
		Prefill:             prefill.Config{Timeout: s.Faults.PrefillTimeout},
		Decode:              decode.Config{StreamIdleTimeout: s.Faults.StreamIdleTimeout, FirstTokenTimeout: s.Faults.DecodeFirstTokenTimeout},
		Routers:             roles,
		Events:              events.SubscriberConfig{Seed: base.Seed},
		Prefix:              s.Discovery.Prefix,
		LeaseTTL:            s.Discovery.LeaseTTL,
		TokenizerCacheBytes: s.Router.TokenizerCacheBytes,
		MetricsPrefix:       settings.MetricsPrefix(s.Metrics.Prefix),
		Version:             version,
		Grace:               s.HTTP.ShutdownGrace,
		Drain:               s.HTTP.DrainTimeout,
	}
	c.Edge.Host, c.Edge.Port = s.HTTP.Host, s.HTTP.Port
	c.Edge.APIKeyFile, c.Edge.AdminKeyFile, c.Edge.AdminAddress = s.Admin.APIKeyFile, s.Admin.AdminKeyFile, s.Admin.Address
	c.Edge.ForwardHeaders = s.HTTP.ForwardHeaders
	c.Edge.MaxBodyBytes = int(s.HTTP.MaxBodyBytes)
	c.Edge.ReadTimeout, c.Edge.IdleTimeout = s.HTTP.ReadTimeout, s.HTTP.IdleTimeout
	c.Edge.WriteStall, c.Edge.Heartbeat = s.HTTP.WriteStallTimeout, s.HTTP.SSEHeartbeat
	return c, validate(c)
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
	if c.Drain < 0 || c.Drain > 24*time.Hour {
		return fmt.Errorf("drain-timeout: %v is not between 0s and 24h", c.Drain)
	}
	return nil
}
