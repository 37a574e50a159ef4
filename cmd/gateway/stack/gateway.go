// Package stack composes the rooms into things that run: the gateway, a
// simulated worker, and the whole fleet of `gateway dev`. It decides nothing a
// room could decide; it connects them, starts them in order and ends them in
// the reverse.
package stack

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/edge"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/remote"
)

// GatewayConfig is what a gateway is made of: each room's own Config, and what
// lies between rooms.
type GatewayConfig struct {
	Edge     edge.Config
	Pools    pools.Config
	Flow     handoff.Config
	Prefill  prefill.Config
	Decode   decode.Config
	Upstream upstream.Config
	// MetricsPrefix goes before the names of the gateway's own metrics, such as
	// "tandem_"; empty for none. Build is what build_info says of the program.
	MetricsPrefix string
	Build         telemetry.Build
	// Breakers is when a worker that fails is left alone, and for how long.
	Breakers fault.BreakerConfig
	// WrapTransport puts something between the rooms and the workers, such as
	// fault.Inject; nil for nothing. Clean-up calls pass through it too.
	WrapTransport func(upstream.Transport) upstream.Transport
	// Workers are those given by URL, and how many are awaited.
	Workers WorkersConfig
	// Remote is the index elsewhere that is asked what workers hold; without URLs
	// none is.
	Remote remote.Config
	// Routers has one Config for each role.
	Routers map[pools.Role]router.Config
	// Events is how KV events are followed, and EventSeed its jitter's seed.
	Events events.SubscriberConfig
	// Retell has requests ask engines whose events were lost to tell again what of
	// their caches they use.
	Retell bool
	// Prefix and LeaseTTL are discovery's: where workers register, and how
	// long a missing one may take to come back after the registry was away.
	Prefix   string
	LeaseTTL time.Duration
	// TokenizerCacheBytes bounds what is remembered of prompts' tokens.
	TokenizerCacheBytes int64
	// Grace is how long requests are still taken after /health has turned to
	// 503, and Drain how long those in flight may take after that, when the
	// gateway stops.
	Grace time.Duration
	Drain time.Duration
}

// Links are the gateway's connections to the rest of the fleet. Either may be
// nil: without Bus there are no KV events, without Etcd workers come by
// Gateway.Roster alone.
type Links struct {
	Bus  events.Bus
	Etcd *clientv3.Client
}

// Gateway is a whole gateway.
type Gateway struct {
	// Roster is who the workers are.
	Roster *pools.Roster
	// Flow serves the requests.
	Flow *handoff.Flow

	cfg        GatewayConfig
	began      time.Time
	log        *slog.Logger
	edge       *edge.Server
	routers    *router.Set
	transport  *upstream.HTTP
	subscriber *events.Subscriber // nil where no router follows KV events
	follower   *follower
	watcher    *discovery.Watcher
	remote     *remote.Client // nil without one
	given      given
	listener   net.Listener
	admin      net.Listener // nil without an address of its own
}

// NewGateway connects the rooms. Nothing runs before Run. The gateway's own
// metrics go into reg under the prefix; what is there already keeps its names.
func NewGateway(cfg GatewayConfig, links Links, log *slog.Logger, reg *prometheus.Registry) (*Gateway, error) {
	if err := errors.Join(cfg.Pools.Validate(), cfg.Prefill.Validate(), cfg.Decode.Validate(), cfg.Upstream.Validate()); err != nil {
		return nil, err
	}
	forecast := new(forecast)
	g := &Gateway{cfg: cfg, began: time.Now(), log: log}
	overs := routersOver(cfg.Routers, forecast.of, g.engineBlock)
	for role, c := range overs {
		c.Told = len(cfg.Remote.URLs) > 0
		overs[role] = c
	}
	routers, err := router.NewSet(overs, log)
	if err != nil {
		return nil, err
	}
	cfg.Pools.HandsOver, cfg.Pools.MixesBlocks = handoff.HandsOver, handoff.MixesBlocks
	g.routers, g.Roster, g.transport = routers, pools.NewRoster(cfg.Pools, log), upstream.NewHTTP(cfg.Upstream)
	var transport upstream.Transport = g.transport
	if cfg.WrapTransport != nil {
		transport = cfg.WrapTransport(transport)
	}
	own := prometheus.WrapRegistererWithPrefix(cfg.MetricsPrefix, reg)
	own.MustRegister(cfg.Build.Info())
	breakers := g.breakers(own)
	prefillRoom := prefill.New(cfg.Prefill, g.Roster, routers, transport)
	g.Roster.OnChange(prefillRoom.Forget)
	decodeRoom := decode.New(cfg.Decode, g.Roster, routers, transport)
	g.Roster.OnChange(decodeRoom.Forget)
	forecast.prefill, forecast.both = prefillRoom.Rate, decodeRoom.Rate
	if err := g.addRemote(own); err != nil {
		return nil, err
	}
	sim := tokens.NewCache(tokens.Sim(), cfg.TokenizerCacheBytes)
	g.Flow, err = handoff.New(cfg.Flow, handoff.Rooms{
		Roster:    g.Roster,
		Prefill:   prefillRoom,
		Decode:    decodeRoom,
		Breakers:  breakers,
		Transport: transport,
		Pairer:    routers.Pairer,
		Tokenizer: func(model string) *tokens.Cache {
			if model == SimModel {
				return sim
			}
			return nil
		},
		Remote:   g.askRemote(),
		Retell:   g.retell,
		Starting: g.starting,
	}, log, own)
	if err != nil {
		return nil, err
	}
	if g.edge, err = edge.New(cfg.Edge, g.Flow, g, telemetry.Handler(reg), log, own); err != nil {
		return nil, err
	}
	g.OnReload(g.edge.ReloadKeys)
	if err := g.addFollower(links, own); err != nil {
		return nil, err
	}
	if links.Etcd != nil {
		g.watcher, err = discovery.NewWatcher(links.Etcd, g.Roster.From(fromEtcd), discovery.WatcherConfig{
			Prefix: folder(cfg.Prefix), Allow: cfg.allowed(), Grace: cfg.LeaseTTL, Seed: cfg.Events.Seed,
		}, log)
		if err != nil {
			return nil, err
		}
	}
	return g, g.addGiven()
}

// routersOver is the routers' settings with what only the stack has.
func routersOver(
	configs map[pools.Role]router.Config, forecast router.Forecast, engineBlock func(*pools.Worker, int) int,
) map[pools.Role]router.Config {
	out := maps.Clone(configs)
	for role, c := range out {
		c.Forecast, c.EngineBlock = forecast, engineBlock
		out[role] = c
	}
	return out
}

// forecast predicts first tokens by the rates that the legs have observed.
type forecast struct {
	prefill, both func(worker string) float64 // tokens a second, 0 unknown
}

// of is a router.Forecast. What is transferred afterwards takes as long from one
// worker as from another, as far as is known here.
func (f *forecast) of(w *pools.Worker, booked, uncached, _ int) (time.Duration, bool) {
	rate := f.both
	if w.Role == pools.Prefill {
		rate = f.prefill
	}
	perSecond := rate(w.ID)
	if perSecond <= 0 {
		return 0, false
	}
	seconds := min(float64(booked+uncached)/perSecond, (24 * time.Hour).Seconds()) // longer is as good as never
	return time.Duration(seconds * float64(time.Second)), true
}

// addFollower makes what follows KV events, where there is a bus or a router that
// wants them.
func (g *Gateway) addFollower(links Links, reg prometheus.Registerer) error {
	wanted := links.Bus != nil
	for _, c := range g.cfg.Routers {
		wanted = wanted || c.KVEvents
	}
	if !wanted {
		return nil
	}
	f := &follower{roster: g.Roster, routers: g.routers, nats: links.Bus != nil, log: g.log}
	cfg := g.cfg.Events
	cfg.OnState = f.changed
	var err error
	if f.subscriber, err = events.NewSubscriber(cfg, links.Bus, g.index, g.log, reg); err != nil {
		return err
	}
	g.subscriber, g.follower = f.subscriber, f
	if g.cfg.Retell {
		f.retell = &retelling{status: f.subscriber.Source}
	}
	reg.MustRegister(parityCollector{g})
	return nil
}

// retell is asked for each request to a worker that computes its prompt.
func (g *Gateway) retell(w *pools.Worker, rank int) bool {
	return g.follower != nil && g.follower.retell != nil && g.follower.retell.wanted(w, rank)
}

// breakers makes the circuits of all workers, which go with them.
func (g *Gateway) breakers(reg prometheus.Registerer) *fault.Breakers {
	cfg := g.cfg.Breakers
	cfg.OnChange = func(c fault.Circuit, from fault.State) {
		g.log.Warn("circuit "+string(c.State), "worker", c.Worker, "leg", c.Leg, "was", from)
	}
	b := fault.NewBreakers(cfg)
	reg.MustRegister(b.Collector())
	g.Roster.OnChange(func() {
		for _, c := range b.States() {
			if _, known := g.Roster.Lookup(c.Worker); !known {
				b.Forget(c.Worker)
			}
		}
	})
	return b
}

// Listen opens the gateway's address, so that it is known before Run.
func (g *Gateway) Listen() (net.Addr, error) {
	ln, err := g.edge.Listen()
	if err != nil {
		return nil, err
	}
	if g.admin, err = g.edge.ListenAdmin(); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	g.listener = ln
	return ln.Addr(), nil
}

// AdminAddr is the address that administration has for itself; nil when it has
// none, and before Listen.
func (g *Gateway) AdminAddr() net.Addr {
	if g.admin == nil {
		return nil
	}
	return g.admin.Addr()
}

// UseListener takes ln in Listen's place, for tests in memory.
func (g *Gateway) UseListener(ln net.Listener) { g.listener = ln }

// Run serves until ctx ends, then lets requests in flight finish within the
// drain time. What feeds the flow (roster, watcher, events) ends after what it
// serves.
func (g *Gateway) Run(ctx context.Context) error {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, inner := errgroup.WithContext(inner)
	group.Go(func() error { return g.Roster.Run(inner) })
	if g.subscriber != nil {
		g.Roster.OnChange(g.follower.update)
		g.follower.update()
		group.Go(func() error { return g.subscriber.Run(inner) })
	}
	if g.watcher != nil {
		group.Go(func() error { return g.watcher.Run(inner) })
	}
	if g.remote != nil {
		group.Go(func() error { return g.remote.Run(inner) })
	}
	group.Go(func() error { return newTrimmer(g.edge.InFlight).Run(inner) })
	g.runGiven(inner, group)
	group.Go(func() error { return g.edge.Serve(g.listener) })
	if g.admin != nil {
		group.Go(func() error { return g.edge.ServeAdmin(g.admin) })
	}
	group.Go(func() error {
		select {
		case <-ctx.Done():
			g.edge.Leave()
			g.log.Info("stopping", "grace", g.cfg.Grace, "drain", g.cfg.Drain)
			select {
			case <-time.After(g.cfg.Grace):
			case <-inner.Done():
			}
		case <-inner.Done(): // another part failed
		}
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.Drain)
		defer cancel()
		err := g.edge.Shutdown(drain)
		// What the drain's end cut off has staged KV to release. Each of these calls
		// has its own limit, 5 s, and the drain's is over.
		err = errors.Join(err, g.Flow.Close(context.WithoutCancel(ctx)))
		g.transport.CloseIdle()
		stop()
		if err != nil {
			g.log.Warn("not every request could finish within the drain time", "error", err)
		}
		return nil
	})
	return group.Wait()
}

// SimModel is the simulated engines' model.
const SimModel = "tandem-sim"
