package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// AttachConfig configures `gateway attach`.
type AttachConfig struct {
	// Engine is the engine's address and its operator's overrides; the engine reports the rest.
	Engine discovery.Endpoint
	// Advertise is the engine's URL for gateways; empty is the engine's address.
	Advertise string
	Probe     discovery.ProberConfig // AskFirst and OnBeat are set here
	Prefix    string                 // of the registry
	LeaseTTL  time.Duration
	Follow    follow.Config
	// Settle is how long a healthy worker waits for KV events before it registers without them. The default is 5 s.
	Settle time.Duration
	// Report is how often the log names what is missing. The default is 15 s.
	Report time.Duration
	// Drain is how long KV events are forwarded after deregistering, for the worker's last requests.
	Drain time.Duration
}

// Attach registers a healthy engine and forwards its KV events. It neither starts nor stops the engine.
type Attach struct {
	cfg    AttachConfig
	links  Links
	log    *slog.Logger
	reg    prometheus.Registerer
	prober *discovery.Prober

	news     chan news       // from the prober
	restarts chan time.Time  // from the bridge: when the replaced engine was lost
	moved    chan struct{}   // buffered: the bridge's state has changed
	inner    context.Context // the context of Run's goroutines
	runs     *errgroup.Group // goroutines that live as long as Run
	ends     sync.WaitGroup  // goroutines that end by themselves
	metrics  *attachMetrics

	// Owned by Run.
	waiting *pools.Worker    // to be registered when its KV events have settled
	settle  <-chan time.Time // ends that wait
	bridge  *bridging        // nil without KV events over NATS
	current *registration    // nil while deregistered
	hinted  bool

	mu     sync.Mutex           // guards all below
	awaits string               // what is missing; empty while registered
	holds  *discovery.Registrar // of the registered worker; or nil
}

// news is from the prober: the engine's worker, nil when it failed, or why it cannot be used.
type news struct {
	worker  *pools.Worker
	refused error
}

// proberSink is an Attach as its prober's [discovery.Sink].
type proberSink struct{ *Attach }

// registration is one record in etcd.
type registration struct {
	record    pools.Worker
	registrar *discovery.Registrar
	cancel    context.CancelFunc
	done      chan struct{}
}

// NewAttach returns an Attach for one engine. links.Etcd is required. Without links.Bus the record names the engine's
// KV event endpoint, and gateways connect to it. Nothing runs before Run.
func NewAttach(cfg AttachConfig, links Links, log *slog.Logger, reg prometheus.Registerer) (*Attach, error) {
	if links.Etcd == nil {
		return nil, errors.New("attach: there is no etcd to register in")
	}
	cfg.Settle, cfg.Report = cmp.Or(cfg.Settle, 5*time.Second), cmp.Or(cfg.Report, 15*time.Second)
	a := &Attach{
		cfg: cfg, links: links, log: log, reg: reg,
		news: make(chan news), restarts: make(chan time.Time, 16), moved: make(chan struct{}, 1),
		awaits: "the engine at " + cfg.Engine.Worker.Address,
	}
	if links.Certs != nil {
		links.Certs.Export(reg)
	}
	a.metrics = newAttachMetrics(reg, func() bool { ok, _ := a.Registered(); return ok })
	probe := cfg.Probe
	probe.AskFirst, probe.OnBeat = true, a.beat
	a.prober = discovery.NewProber(proberSink{a}, probe, log)
	a.prober.Set([]discovery.Endpoint{cfg.Engine})
	return a, nil
}

// Registered reports whether gateways see the worker; if not, awaits is what is missing.
func (a *Attach) Registered() (ok bool, awaits string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.awaits == "" && a.holds != nil && !a.holds.Held() {
		return false, awaitsEtcd
	}
	return a.awaits == "", a.awaits
}

// awaitsEtcd is reported while the record cannot be written to etcd.
const awaitsEtcd = "etcd, to register in"

// Put reports a healthy engine.
func (s proberSink) Put(w pools.Worker) error { s.send(news{worker: &w}); return nil }

// Remove reports a failed engine.
func (s proberSink) Remove(string) { s.send(news{}) }

// Refuse reports an engine that responds but cannot be used.
func (s proberSink) Refuse(_ pools.Worker, reason error) { s.send(news{refused: reason}) }

// Lose reports an engine that does not respond.
func (s proberSink) Lose(pools.Worker) { s.send(news{}) }

// Suspend does nothing: gateways detect it themselves.
func (proberSink) Suspend(string, bool) {}

// Resync does nothing: a prober has no list to lose.
func (proberSink) Resync([]pools.Worker, time.Duration) {}

func (s proberSink) send(n news) {
	select {
	case s.news <- n:
	case <-s.inner.Done():
	}
}

// beat records the result of each health check.
func (a *Attach) beat(_ string, err error) {
	if err == nil {
		return
	}
	a.metrics.failures.Inc()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.awaits != "" {
		a.awaits = fmt.Sprintf("the engine at %s: %v", a.cfg.Engine.Worker.Address, err)
	}
}

// await sets what is missing, empty for nothing.
func (a *Attach) await(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.awaits = what
}

// Run serves the engine until ctx ends. It then deregisters the worker, forwards its KV events for the drain time,
// and returns.
func (a *Attach) Run(ctx context.Context) error {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	a.runs, a.inner = errgroup.WithContext(inner)
	asking, stopAsking := context.WithCancel(a.inner)
	defer stopAsking()
	asked := make(chan struct{})
	a.runs.Go(func() error {
		defer close(asked)
		return a.prober.Run(asking)
	})
	a.runs.Go(func() error { return a.links.Certs.Run(a.inner) })
	a.log.Info("waiting for the engine", "url", a.cfg.Engine.Worker.Address, "role", string(a.cfg.Engine.Worker.Role))
	a.follow(ctx)
	stopAsking()
	for asking := true; asking; { // it may be sending news
		select {
		case <-asked:
			asking = false
		case <-a.news:
		}
	}
	registered := a.current != nil && a.current.registrar.Lodged() // a gateway may see it before we do
	a.withdraw("it is being detached")
	if registered && a.bridge != nil && a.cfg.Drain > 0 {
		a.log.Info("draining: KV events are still forwarded", "worker", a.cfg.Engine.Worker.ID, "drain", a.cfg.Drain)
		select {
		case <-time.After(a.cfg.Drain):
		case <-a.inner.Done(): // something else failed
		}
	}
	a.unbridge()
	stop()
	a.ends.Wait()
	err := a.runs.Wait()
	a.log.Info("detached; the engine keeps running", "worker", a.cfg.Engine.Worker.ID, "was_registered", registered)
	return err
}

// follow reacts to the engine's state until ctx ends.
func (a *Attach) follow(ctx context.Context) {
	report := time.NewTicker(a.cfg.Report)
	defer report.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.inner.Done():
			return
		case n := <-a.news:
			switch {
			case n.refused != nil:
				a.await(n.refused.Error())
				a.log.Warn("engine cannot be used; still probing", "error", n.refused)
			case n.worker == nil:
				a.metrics.withdrawals.Inc()
				a.withdraw("the engine at " + a.cfg.Engine.Worker.Address)
			default:
				a.take(n.worker)
			}
		case cut := <-a.restarts:
			a.prober.Suspect(a.cfg.Engine.Worker.ID, cut)
		case <-a.moved:
			a.settled(a.bridge != nil && a.bridge.Settled())
		case <-a.settle:
			a.log.Warn("registering before the first KV event; predicting the worker's cache until then",
				"worker", a.cfg.Engine.Worker.ID, "endpoint", a.bridge.at.from.Endpoint)
			a.settled(true)
		case <-report.C:
			if ok, awaits := a.Registered(); !ok {
				a.log.Info("still waiting", "for", awaits)
			}
		}
	}
}

// take registers the engine's worker once its KV events are followed.
func (a *Attach) take(w *pools.Worker) {
	record := *w
	if a.cfg.Advertise != "" {
		record.Address = a.cfg.Advertise
	}
	a.hint(w)
	if w.KVEvents == "zmq" && a.links.Bus != nil {
		record.KVEvents, record.KVEndpoint, record.KVReplay, record.KVTopic = "nats", "", "", ""
		if err := a.follows(bridgedAt(w)); err != nil {
			a.log.Warn("KV events not forwarded; predicting the worker's cache", "worker", w.ID, "error", err)
			record.KVEvents = "none"
		}
	} else {
		a.unbridge()
		record.KVEndpoint = advertised(w.KVEndpoint, w.Address, record.Address)
		record.KVReplay = advertised(w.KVReplay, w.Address, record.Address)
	}
	a.waiting = &record
	if a.bridge == nil || a.bridge.Settled() {
		a.settled(true)
		return
	}
	a.settle = time.After(a.cfg.Settle)
	a.await("KV events of " + a.bridge.at.from.Endpoint)
}

// settled registers the waiting worker.
func (a *Attach) settled(ok bool) {
	if !ok || a.waiting == nil {
		return
	}
	record := a.waiting
	a.waiting, a.settle = nil, nil
	a.register(*record)
}

// register puts the record into etcd. The old record stays until the new one has replaced it.
func (a *Attach) register(record pools.Worker) {
	old := a.current
	registrar, err := discovery.NewRegistrar(a.links.Etcd, record, a.cfg.Prefix, a.cfg.LeaseTTL, a.log)
	if err != nil {
		a.withdraw(err.Error())
		a.log.Error("worker cannot be registered", "error", err)
		return
	}
	if old != nil {
		old.cancel()
		<-old.done // else it might restore the old record
		if old.record.Model != record.Model {
			a.deregister(old)
			old = nil
		}
	}
	ctx, cancel := context.WithCancel(a.inner)
	now := &registration{record: record, registrar: registrar, cancel: cancel, done: make(chan struct{})}
	a.current = now
	a.metrics.registrations.Inc()
	a.await(awaitsEtcd)
	a.ends.Go(func() {
		defer close(now.done)
		_ = registrar.Run(ctx) // it ends only by ctx
	})
	a.ends.Go(func() {
		select {
		case <-registrar.Registered(): // the old lease holds no key and expires
			a.mu.Lock()
			if ctx.Err() == nil {
				a.awaits, a.holds = "", registrar
			}
			a.mu.Unlock()
		case <-ctx.Done():
			if old != nil {
				a.deregister(old)
			}
		}
	})
}

// withdraw removes the worker from etcd, which gateways see at once.
func (a *Attach) withdraw(why string) {
	a.waiting, a.settle = nil, nil
	if a.current != nil {
		a.current.cancel()
		<-a.current.done
		a.deregister(a.current)
		a.current = nil
	}
	a.await(why)
}

// deregister removes the record of an ended registration.
func (a *Attach) deregister(r *registration) {
	if err := r.registrar.Deregister(context.WithoutCancel(a.inner)); err != nil {
		a.log.Warn("deregistration failed; the registration expires with its lease", "worker", r.record.ID, "error", err)
	}
}

// hint logs once how to make an engine publish KV events.
func (a *Attach) hint(w *pools.Worker) {
	if w.KVEvents != "none" || a.cfg.Engine.Worker.KVEvents != "" || a.hinted {
		return
	}
	a.hinted = true
	how := map[string]string{
		"vllm": `start vLLM with --kv-events-config ` +
			`'{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'; ` +
			`before 0.31.0 also set --engine-kv-events tcp://HOST:5557 --engine-kv-replay tcp://HOST:5558 here`,
		"sglang": `start SGLang with --kv-events-config ` +
			`'{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'; ` +
			`a release that does not report it in /server_info needs --engine-kv-events tcp://HOST:5557 here as well`,
		"trtllm": `set kv_events_config in TensorRT-LLM's configuration and --engine-kv-events tcp://HOST:PORT here: ` +
			`it cannot report it by itself`,
		"sim": `start the worker with --kv-events zmq-vllm`,
	}[w.Engine]
	a.log.Warn("engine publishes no KV events; predicting its cache from the prompts sent to it",
		"worker", w.ID, "engine", w.Engine, "to_change", how)
}

// advertised returns an endpoint with the engine's host as seen by others, if it has the host as seen from here.
func advertised(endpoint, here, there string) string {
	from, err1 := url.Parse(here)
	to, err2 := url.Parse(there)
	at, err3 := url.Parse(endpoint)
	if endpoint == "" || errors.Join(err1, err2, err3) != nil || at.Hostname() != from.Hostname() {
		return endpoint
	}
	return "tcp://" + net.JoinHostPort(to.Hostname(), at.Port())
}
