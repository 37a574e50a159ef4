// Package stack composes the rooms into the gateway and `gateway attach`: it connects them, starts them in order, and
// stops them in reverse.
package stack

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/feed"
	"github.com/tandem-pd/tandem/router/replica"
)

// Links are the gateway's connections to the fleet. Each may be nil: without Bus there are no KV events, without Etcd
// workers come only from Gateway.Roster, and without Group nothing is shared with other gateways.
type Links struct {
	Bus   wire.Bus
	Etcd  *clientv3.Client
	Group *Group
	// Certs holds all certificates; it may be nil. A gateway adds its own.
	Certs *certs.Store
}

// Gateway is a complete gateway.
type Gateway struct {
	// Roster holds the workers.
	Roster *pools.Roster
	// Flow serves the requests.
	Flow *handoff.Flow
	// Fleet reports workers and bookings.
	Fleet *observe.Fleet

	cfg       GatewayConfig
	began     time.Time
	log       *slog.Logger
	journal   *observe.Journal
	edge      *edge.Server
	advisor   *advisor
	console   *console.Console
	examiner  *examiner
	routers   *router.Set
	prefill   *prefill.Room
	decode    *decode.Room
	transport *http1.Client
	feed      *feed.Feed // nil if no router follows KV events
	watcher   *discovery.Watcher
	remote    *service.Client // nil without a remote index
	languages *models.Library
	traces    *trace.Exporter // nil if no request is traced
	member    *replica.Member // nil if nothing is shared with other gateways
	kept      *replica.Board  // nil if operators' changes are not persisted
	given     given
	certs     *certs.Store
	listener  net.Listener
	admin     net.Listener // nil without an admin address
}

// NewGateway connects the rooms. Nothing runs before Run. The gateway's metrics are registered in reg under the
// prefix; existing ones keep their names.
func NewGateway(cfg GatewayConfig, links Links, log *slog.Logger, reg *prometheus.Registry) (_ *Gateway, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log, journal := observe.Journaled(log)
	if !cfg.Goroutines {
		loops := http1.NewLoops()
		cfg.Edge.Loops, cfg.Upstream.Loops = loops, loops
	}
	if cfg.Flow.Queue.Policy == queue.Auto {
		cfg.Flow.Queue.Policy = cfg.Router.QueuePolicy()
	}
	certificates := cmp.Or(links.Certs, certs.NewStore(0, log))
	workers, err := cfg.Workers.TLS.Open(&cfg.Identity, certificates)
	if err != nil {
		return nil, err
	}
	cfg.Edge.Certs, cfg.Upstream.Trust, cfg.Workers.Probe.Trust = certificates, workers, workers
	g := &Gateway{cfg: cfg, began: time.Now(), log: log, journal: journal, certs: certificates}
	g.OnReload(g.certs.Reload)
	defer func() {
		if err != nil {
			g.traces.Close()
		}
	}()
	if links.Group != nil {
		g.member = replica.NewMember(cfg.Replicas, links.Group, log)
		cfg.Router.Peers, cfg.Router.OnBooking, cfg.Flow.Queue.OnHead = g.member, g.member.Booked, g.member.HeadsChanged
		if cfg.Flow.Seed != 0 { // it may be the same for all gateways
			seed := gatewaySeed(cfg.Flow.Seed, cfg.Replicas.Name, cfg.Edge.Port)
			cfg.Flow.Seed, cfg.Router.Seed = seed, seed
		}
	}
	cfg.Pools.HandsOver, cfg.Pools.MixesBlocks = connector.Check, connector.MixesBlocks
	g.Roster, g.transport = pools.NewRoster(cfg.Pools, log), http1.NewClient(cfg.Upstream)
	var transport http1.Transport = g.transport
	if cfg.WrapTransport != nil {
		transport = cfg.WrapTransport(transport)
	}
	g.prefill = prefill.New(cfg.Prefill, g.Roster, transport)
	g.Roster.OnChange(g.prefill.Forget)
	g.decode = decode.New(cfg.Decode, g.Roster, transport)
	g.Roster.OnChange(g.decode.Forget)
	engineBlock := func(w *pools.Worker, rank int) int { return g.feed.EngineBlock(w, rank) } // the feed writes into the routers' indexes
	if g.routers, err = router.NewSet(cfg.routers((&forecast{g.prefill.Forecast, g.decode.Forecast}).of,
		(&forecast{g.prefill.Occupied, g.decode.Occupied}).of, engineBlock), log); err != nil {
		return nil, err
	}
	own := prometheus.WrapRegistererWithPrefix(cfg.MetricsPrefix, reg)
	own.MustRegister(cfg.Build.Info())
	g.certs.Export(own)
	feed.ExportIndexes(own, func(emit feed.EmitIndex) { g.routers.IndexStats(g.Roster.Pools(), emit) })
	breakers := g.breakers(own)
	if len(cfg.Remote.URLs) > 0 {
		if g.remote, err = service.NewClient(cfg.Remote, g.Roster, log, own); err != nil {
			return nil, err
		}
		g.OnReload(g.remote.Reload)
	}
	if g.languages, err = models.NewLibrary(cfg.Models, g.Roster, transport, log, own); err != nil {
		return nil, err
	}
	g.languages.Put(SimModel, models.Sim(cfg.Models.CacheBytes))
	g.Roster.OnChange(g.languages.Wake)
	g.OnReload(g.languages.Reload)
	rooms := handoff.Rooms{
		Roster:     g.Roster,
		Prefill:    g.prefill,
		Decode:     g.decode,
		Breakers:   breakers,
		Transport:  transport,
		Routers:    g.routers,
		Languages:  g.languages,
		Reannounce: func(w *pools.Worker, rank int) bool { return g.feed.Reannounce(w, rank) },
		Ejected:    func(p *pools.Pool) []string { return g.Fleet.Ejected(p) },
		Starting:   g.starting,
		PairChanged: func(p, d *pools.Worker, reason string) {
			if reason == "" {
				log.Info("pair open", "model", d.Model, "prefill", p.ID, "decode", d.ID)
				return
			}
			log.Warn("pair shut", "model", d.Model, "prefill", p.ID, "decode", d.ID, "reason", reason)
		},
		Look: func(worker string) {
			for _, p := range g.given.probers {
				p.Look(worker)
			}
		},
	}
	if g.remote != nil {
		rooms.Remote = func(ctx context.Context, model string, blockSize int, hashes []uint64) (*overlap.Report, string) {
			report, outcome := g.remote.Lookup(ctx, model, blockSize, hashes)
			return report, string(outcome)
		}
	}
	cfg.Traces.Service, cfg.Traces.Version = "tandem-gateway", cfg.Build.Version
	if g.traces, err = trace.NewExporter(cfg.Traces, log, own); err != nil {
		return nil, err
	}
	if g.traces != nil {
		rooms.Sample = g.traces.Sample
	}
	cfg.Flow.Explain = cfg.Flow.Explain || cfg.Observe.Routing()
	observer := observe.New(cfg.Observe, own, log, g.traces)
	recorder := console.NewRecorder(observer)
	rooms.Explains = recorder.Explains
	g.Flow, err = handoff.New(cfg.Flow, rooms, recorder)
	if err != nil {
		return nil, err
	}
	g.Fleet, g.advisor = observe.NewFleet(rooms, observer), &advisor{gateway: g}
	observe.Expose(own, g.Flow, g.Fleet, observer)
	g.share(links.Group, breakers, own)
	scrape := observe.Handler(reg, cfg.MetricsPrefix)
	if g.traces != nil {
		scrape = observe.ExemplarHandler(reg, cfg.MetricsPrefix)
	}
	g.examiner = &examiner{g: g, observer: observer, recorder: recorder, breakers: breakers}
	if links.Bus != nil {
		g.examiner.buses = append(g.examiner.buses, links.Bus)
	}
	if links.Group != nil {
		g.examiner.buses = append(g.examiner.buses, links.Group)
	}
	g.examiner.export(own)
	sources := console.Sources{
		Fleet: g.Fleet, Flow: g.Flow, Rooms: rooms, Streams: observer.Streams, Events: g.eventStates,
		Peers: g.member.Peers, Journal: journal, Past: g.Past, Problems: g.examiner.report,
		Settings: cfg.InForce, Keys: cfg.Edge.AdminKeyFile != "", Version: cfg.Build.Version,
	}
	if g.member != nil {
		sources.Query, sources.Name = g.member.Query, g.Name
	}
	g.console = console.New(sources, recorder)
	cfg.Edge.Console, cfg.Edge.Version = g.console, cfg.Build.Version
	if g.edge, err = edge.New(cfg.Edge, g.Flow, g, scrape, log, own); err != nil {
		return nil, err
	}
	g.OnReload(g.edge.ReloadKeys)
	g.addFeed(links, own)
	if err := g.addKept(links); err != nil {
		return nil, err
	}
	if links.Etcd != nil {
		g.watcher = discovery.NewWatcher(links.Etcd, g.Roster.From(fromEtcd), discovery.WatcherConfig{
			Prefix: cfg.Prefix, Allow: cfg.allowed(), Grace: cfg.LeaseTTL,
		}, log)
	}
	return g, g.addListed(own)
}

// forecast predicts TTFT by what the legs have observed.
type forecast struct {
	prefill, decode router.Forecast
}

// of is a router.Forecast. It ignores the transfer, which counts as equal for all workers.
func (f *forecast) of(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
	if w.Role == pools.Prefill {
		return f.prefill(w, booked, uncached, cached)
	}
	return f.decode(w, booked, uncached, cached)
}

// addFeed follows KV events, if there is a bus or a router needs them.
func (g *Gateway) addFeed(links Links, reg prometheus.Registerer) {
	if links.Bus == nil && !g.cfg.Router.KVEvents {
		return
	}
	events := g.cfg.Events
	if links.Group != nil {
		events.Group = &follow.Group{Bus: links.Group, Join: g.member.JoinViews}
	}
	events.OnCut = func(worker string) {
		for _, p := range g.given.probers {
			p.Ended(worker)
		}
	}
	config := feed.Config{Events: events, Reannounce: g.cfg.Reannounce, Computed: g.latest}
	g.feed = feed.New(config, links.Bus, g.Roster, g.routers, g.log, reg)
	g.exportParity(reg)
}

// breakers returns the circuits of all workers.
func (g *Gateway) breakers(reg prometheus.Registerer) *fault.Breakers {
	cfg := g.cfg.Breakers
	cfg.OnChange = func(c fault.Circuit, from fault.State) {
		log := g.log
		if c.Adapter != "" {
			log = log.With("adapter", c.Adapter)
		}
		log.Warn("circuit "+string(c.State), "worker", c.Worker, "leg", c.Leg, "was", from)
		if m, known := g.Roster.Lookup(c.Worker); known && c.State == fault.Open && c.Adapter == "" {
			g.member.Opened(m.Worker.Model, c.Worker, c.Leg)
		}
	}
	b := fault.NewBreakers(cfg)
	b.Export(reg)
	g.Roster.OnChange(func() {
		b.Forget(func(worker, adapter string) bool {
			m, known := g.Roster.Lookup(worker)
			return !known || adapter != "" && !slices.Contains(m.Worker.Adapters, adapter)
		})
	})
	return b
}

// Listen opens the gateway's address before Run.
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

// AdminAddr returns the admin address; nil if there is none, and before Listen.
func (g *Gateway) AdminAddr() net.Addr {
	if g.admin == nil {
		return nil
	}
	return g.admin.Addr()
}

// UseListener uses ln instead of Listen, for tests in memory.
func (g *Gateway) UseListener(ln net.Listener) { g.listener = ln }

// Run serves until ctx ends, then lets requests in flight finish within the drain time. The flow's inputs (roster,
// watcher, events) end after the flow.
func (g *Gateway) Run(ctx context.Context) error {
	defer observe.Flush(g.log)
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, inner := errgroup.WithContext(inner)
	group.Go(func() error { return g.Roster.Run(inner) })
	group.Go(func() error { return g.certs.Run(inner) })
	group.Go(func() error { return g.languages.Run(inner) })
	if g.feed != nil {
		group.Go(func() error { return g.feed.Run(inner) })
	}
	group.Go(func() error { return g.member.Run(inner) })
	group.Go(func() error { return g.kept.Run(inner) })
	if g.watcher != nil {
		group.Go(func() error { return guard.Run(inner, g.log, "etcd", g.watcher.Run) })
	}
	if g.remote != nil {
		group.Go(func() error { return g.remote.Run(inner) })
	}
	group.Go(func() error { return g.advisor.Run(inner) })
	group.Go(func() error { return g.Fleet.Run(inner, g.Flow.Wake) })
	group.Go(func() error { return g.console.Run(inner) })
	group.Go(func() error { return g.examiner.run(inner) })
	group.Go(func() error {
		return trimmer{running: g.edge.InFlight, resident: residentBytes, free: freeMemory}.Run(inner)
	})
	g.runListed(inner, group)
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
		// Requests cut off by the drain's end have staged KV to release. Each of these calls has its own limit of 5
		// s.
		err = errors.Join(err, g.Flow.Close(context.WithoutCancel(ctx)))
		g.transport.CloseIdle()
		g.traces.Close()
		stop()
		if err != nil {
			g.log.Warn("drain time over; unfinished requests are cut off", "error", err)
		}
		return nil
	})
	return group.Wait()
}

// LocalAddr returns an address for clients on this machine: loopback for a listener on every address.
func LocalAddr(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}

// SimModel is the simulated engines' model.
const SimModel = "tandem-sim"
