package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
)

// The sources of workers, in the roster and its refusals.
const (
	fromEtcd  = "etcd"
	fromFlags = "the command line"
	fromFile  = "the workers file"
	fromPods  = "Kubernetes"
)

// given manages workers that do not register, and what is reloaded on SIGHUP.
type given struct {
	probers []*discovery.Prober
	file    *discovery.File
	pods    *kubernetes.Finder
	started atomic.Bool // MinInitial workers were there

	predicted atomic.Bool // logged that some workers are predicted

	mu        sync.Mutex // guards reloaders
	reloaders []func() error
}

// allowed returns the hosts whose workers may register; nil for every host.
func (c *GatewayConfig) allowed() *discovery.Hosts {
	if c.Workers.Allow == nil && c.Upstream.BearerToken != "" {
		return discovery.LoopbackHosts()
	}
	return c.Workers.Allow
}

// addListed sets up workers by URL and in pods. Its error may be a *setting.Error.
func (g *Gateway) addListed(reg prometheus.Registerer) error {
	cfg := g.cfg.Workers
	g.Roster.OnChange(func() { g.Awaits() })
	g.Roster.OnChange(g.logPredicted)
	prober := func(source *pools.Source, seed uint64) *discovery.Prober {
		probe := cfg.Probe
		probe.Seed ^= seed
		probe.Latest = g.latest
		p := discovery.NewProber(source, probe, g.log)
		g.given.probers = append(g.given.probers, p)
		return p
	}
	if len(cfg.Static) > 0 {
		prober(g.Roster.From(fromFlags), 1).Set(cfg.Static)
	}
	if cfg.File != "" {
		var err error
		if g.given.file, err = discovery.OpenFile(cfg.File, 0, prober(g.Roster.From(fromFile), 2).Set, g.log); err != nil {
			return fmt.Errorf("workers-file: %w", err)
		}
		g.OnReload(g.given.file.Reload)
	}
	if cfg.Kubernetes.Selector != "" {
		source := g.Roster.From(fromPods)
		var err error
		if g.given.pods, err = kubernetes.New(cfg.Kubernetes, prober(source, 3).Set, source, g.log, reg); err != nil {
			return err
		}
	}
	return nil
}

// latest returns when a worker last computed a prompt or generated a token, zero for never.
func (g *Gateway) latest(id string) time.Time {
	return slices.MaxFunc([]time.Time{g.prefill.Latest(id), g.decode.Latest(id)}, time.Time.Compare)
}

// logPredicted logs once that some workers' caches are predicted. The feed logs workers whose events have not
// arrived.
func (g *Gateway) logPredicted() {
	for _, p := range g.Roster.Pools() {
		if p.Role == pools.Decode || g.given.predicted.Load() {
			continue
		}
		sources := g.routers.For(p.Model, p.Role).Sources()
		always := func(m pools.Member) bool { return sources.PredictsAlways(m.Worker) }
		if slices.ContainsFunc(p.Members, always) && !g.given.predicted.Swap(true) {
			what := "workers without KV events are predicted from where prompts are sent"
			if g.remote != nil {
				what = "blocks that no remote index lists are predicted from where prompts are sent"
			}
			g.log.Info(what, "model", p.Model, "role", string(p.Role))
		}
	}
}

// runListed manages workers by URL and in pods until ctx ends.
func (g *Gateway) runListed(ctx context.Context, group *errgroup.Group) {
	for _, p := range g.given.probers {
		group.Go(func() error { return p.Run(ctx) })
	}
	if g.given.file != nil {
		group.Go(func() error { return guard.Run(ctx, g.log, "workers_file", g.given.file.Run) })
	}
	if g.given.pods != nil {
		group.Go(func() error { return guard.Run(ctx, g.log, "kubernetes", g.given.pods.Run) })
	}
}

// OnReload adds f to Reload. f must change nothing when it fails.
func (g *Gateway) OnReload(f func() error) {
	g.given.mu.Lock()
	defer g.given.mu.Unlock()
	g.given.reloaders = append(g.given.reloaders, f)
}

// Reload reads all files again now. What fails stays unchanged; the error names it.
func (g *Gateway) Reload() error {
	g.given.mu.Lock()
	reloaders := g.given.reloaders
	g.given.mu.Unlock()
	var errs []error
	for _, f := range reloaders {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// Awaits returns what is missing before the first request is accepted, or empty, which is final.
func (g *Gateway) Awaits() string {
	if !g.kept.Ready() {
		return "the list of cordoned workers is read from etcd or NATS"
	}
	if !g.member.Ready() {
		return "bookings are requested from the other gateways of the group"
	}
	if g.given.started.Load() {
		return ""
	}
	now, eligible := time.Now(), 0
	for _, p := range g.Roster.Pools() {
		for i := range p.Members {
			if p.Members[i].Eligible(now) {
				eligible++
			}
		}
	}
	if need := g.cfg.Workers.MinInitial; eligible < need {
		return fmt.Sprintf("%d of %d workers are ready", eligible, need)
	}
	if !g.given.started.Swap(true) && g.cfg.Workers.MinInitial > 0 {
		g.log.Info("enough workers; accepting requests", "ready", eligible, "router_min_initial_workers", g.cfg.Workers.MinInitial)
	}
	return ""
}

// starting refuses a request while workers are awaited; nil afterwards.
func (g *Gateway) starting() *openai.Error {
	g.member.Wait() // briefly: see replica.Config.Join
	what := g.Awaits()
	if what == "" {
		return nil
	}
	e := openai.Unavailable("starting", "the gateway is starting: "+what)
	e.RetryAfter = time.Second
	return e
}
