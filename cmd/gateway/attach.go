package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

type attachSettings struct {
	URL             string          `flag:"url" form:"url http https" group:"Engine" help:"URL of the engine's HTTP server. Required."`
	Engine          string          `flag:"engine" default:"auto" oneof:"auto=by what the engine reports|vllm=vLLM|sglang=SGLang|trtllm=TensorRT-LLM|sim=a simulated worker" group:"Engine" help:"The engine. Set it only where a proxy hides it."`
	Role            string          `flag:"role" default:"both" oneof:"prefill=computes prompts and keeps their KV for a decode worker|decode=pulls KV and generates|both=serves requests alone" group:"Engine" help:"The pool that the engine joins."`
	Advertise       string          `flag:"advertise-url" form:"url http https" group:"Engine" help:"URL at which gateways reach the engine. Empty is url; in a pod give its address."`
	Transfer        string          `flag:"transfer-endpoint" group:"Engine" help:"HOST:PORT of a prefill worker's KV side channel."`
	Worker          attachedWorker  `group:"Worker"`
	Events          attachedEvents  `group:"KV events"`
	LeaseTTL        time.Duration   `flag:"lease-ttl" group:"Life"`
	KeyFile         string          `flag:"worker-api-key-file" group:"Life"`
	TLS             stack.WorkerTLS `group:"Life"`
	Failures        int             `flag:"health-failures" default:"3" range:"1..100" group:"Life" help:"Failed checks that deregister it."`
	Drain           time.Duration   `flag:"attach-drain" default:"10s" range:"0s..1h" group:"Life" help:"On SIGTERM, how long KV events are still forwarded after deregistering. Stop the engine no sooner."`
	Address         string          `flag:"attach-address" form:"hostport" group:"Life" help:"HOST:PORT for GET /live, /ready (200 while registered) and /metrics. Port 0 picks a free one and prints it. Empty has none."`
	stack.Discovery `group:"Discovery"`
	Stream          stack.KVStream  `group:"KV stream"`
	Logging         observe.Logging `group:"Logging"`
}

// attachedWorker overrides what the engine reports about itself.
type attachedWorker struct {
	ID          string   `flag:"id" help:"The worker's unique name, of letters, digits, . - and _. Empty is host and port of its URL."`
	Model       string   `flag:"model" help:"Model to register, if the engine serves several or reports none. Empty uses the reported one."`
	Connector   string   `flag:"connector" help:"The engine's KV transfer protocol, if not its usual one; see docs/engines.md."`
	BlockSize   int      `flag:"block-size" default:"0" range:"0..4096" help:"Tokens in a KV block, equal within a model. 0: the engine's."`
	KVBlocks    int      `flag:"total-kv-blocks" default:"0" range:"0..2147483647" help:"One rank's KV cache in blocks. 0 uses the engine's; TensorRT-LLM reports none and is then never full."`
	MaxSeqs     int      `flag:"max-num-seqs" default:"0" range:"0..2147483647" help:"Sequences one rank runs at once. 0 uses the engine's."`
	BatchTokens int      `flag:"max-num-batched-tokens" default:"0" range:"0..2147483647" help:"Tokens in one engine step. 0: the engine's."`
	Context     int      `flag:"context-length" default:"0" range:"0..2147483647" help:"Most tokens of prompt plus answer. 0: the engine's."`
	Ranks       int      `flag:"ranks" default:"0" range:"0..4096" help:"Data-parallel ranks behind the URL. 0 uses the engine's."`
	ModelInput  string   `flag:"model-input"`
	DeviceClass string   `flag:"device-class" help:"What the engine computes on, for policies that distinguish classes."`
	Topology    []string `flag:"topology" help:"Labels of where the engine is, as rack=r7,zone=a."`
	Taints      []string `flag:"taints"`
}

// attachedEvents overrides where the engine publishes KV events.
type attachedEvents struct {
	Endpoint string `flag:"engine-kv-events" help:"tcp://HOST:PORT of rank 0's KV events over ZeroMQ; further ranks use the next ports. Host * listens; none ignores them; empty uses what the engine reports."`
	Replay   string `flag:"engine-kv-replay" help:"tcp://HOST:PORT where rank 0 replays earlier events. Needs engine-kv-events."`
	Topic    string `flag:"engine-kv-topic" help:"Beginning of the events' topic; empty takes all. Needs engine-kv-events."`
}

// attachFlags maps discovery's fields to flags, where they differ.
var attachFlags = map[string]string{
	"kv-blocks": "total-kv-blocks", "device": "device-class", "transfer": "transfer-endpoint",
	"kv-events": "engine-kv-events", "kv-replay": "engine-kv-replay", "kv-topic": "engine-kv-topic",
}

// attach runs next to an unmodified engine until SIGTERM.
func attach(ctx context.Context, args []string, p process) error {
	var s attachSettings
	r, err := resolve(&s, "attach", args, p)
	if err != nil {
		return err
	}
	cfg, err := s.config(r)
	if err != nil {
		return &setting.Error{Err: err}
	}
	if cfg.Probe.APIKey, err = workerKey(r, s.KeyFile); err != nil {
		return &setting.Error{Err: err}
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	reach := cmp.Or(cfg.Advertise, cfg.Engine.Worker.Address)
	if here(reach) {
		log.Warn("address not reachable from other machines (set --advertise-url)", "address", reach)
	}
	if s.NATSURL == "" {
		log.Warn("KV events not forwarded (set --nats-url); each gateway connects to the engine's endpoint")
	}
	links, unlink, err := stack.Connect(&s.Discovery, s.Stream.Config(), log, nats.Name("tandem attach "+cfg.Engine.Worker.ID))
	if err != nil {
		return r.Placed(err)
	}
	defer unlink()
	if cfg.Probe.Trust, err = s.TLS.Open(&s.Identity, links.Certs); err != nil {
		return r.Placed(err)
	}
	reg := observe.NewRegistry()
	a, err := stack.NewAttach(cfg, links, log, prometheus.WrapRegistererWithPrefix(observe.Prefix, reg))
	if err != nil {
		return err
	}
	if s.Address == "" {
		return a.Run(ctx)
	}
	ln, err := net.Listen("tcp", s.Address)
	if err != nil {
		return fmt.Errorf("attach-address: %w", err)
	}
	fmt.Fprintf(p.stdout, "attach http://%s\n", stack.LocalAddr(ln.Addr()))
	// The listener outlives the rest, so that a drain can be watched.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		return a.Run(failed)
	})
	group.Go(func() error {
		return service.ServeSidecar(serving, ln, service.NewSidecar(a, observe.Handler(reg, observe.Prefix)), log)
	})
	return group.Wait()
}

// here reports whether a URL leads to this machine only.
func here(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	at, err := netip.ParseAddr(u.Hostname())
	return err == nil && at.IsLoopback() || u.Hostname() == "localhost"
}

func (s *attachSettings) config(r *setting.Resolved) (stack.AttachConfig, error) {
	c := stack.AttachConfig{
		Advertise: strings.TrimSuffix(s.Advertise, "/"),
		Probe:     discovery.ProberConfig{Failures: s.Failures, Seed: rand.Uint64()},
		Prefix:    s.Prefix, LeaseTTL: s.LeaseTTL, Follow: follow.Config{Seed: rand.Uint64()}, Drain: s.Drain,
	}
	switch {
	case s.URL == "":
		return c, errors.New("url: the engine's address is missing, as --url http://127.0.0.1:8000")
	case len(s.EtcdEndpoints) == 0:
		return c, errors.New("etcd-endpoints: the worker registers in etcd, so it must be named, as --etcd-endpoints http://HOST:2379")
	}
	for _, e := range []struct{ flag, value string }{{"engine-kv-replay", s.Events.Replay}, {"engine-kv-topic", s.Events.Topic}} {
		if e.value != "" && (s.Events.Endpoint == "" || s.Events.Endpoint == "none") {
			return c, r.Refuse(e.flag,
				errors.New("goes with engine-kv-events tcp://HOST:PORT: give both, or neither to use what the engine reports"))
		}
	}
	given, err := s.given(r)
	if err != nil {
		return c, err
	}
	if c.Advertise != "" { // it also names the worker
		far := given
		far.Address = c.Advertise
		e, err := discovery.NewEndpoint(far)
		if err != nil {
			return c, refuseEngine(r, "advertise-url", err)
		}
		given.ID = e.Worker.ID
	}
	if c.Engine, err = discovery.NewEndpoint(given); err != nil {
		return c, refuseEngine(r, "url", err)
	}
	// NewEndpoint has checked the endpoint.
	if at, err := zmq.ParseEndpoint(given.KVEndpoint); err == nil && at.Binds() && s.NATSURL == "" {
		return c, r.Refuse("engine-kv-events", errors.New("attach listens for this engine and forwards its events over NATS: "+
			"give nats-url too, or the engine's host"))
	}
	return c, nil
}

// refuseEngine names the flag of a discovery error; address is the flag of the URL.
func refuseEngine(r *setting.Resolved, address string, err error) error {
	bad, ok := errors.AsType[*discovery.EndpointError](err)
	if !ok {
		return err
	}
	flag := cmp.Or(attachFlags[bad.Field], bad.Field)
	if bad.Field == "url" {
		flag = address
	}
	return r.Refuse(flag, errors.New(bad.Problem))
}

// given returns the engine as described by the flags.
func (s *attachSettings) given(r *setting.Resolved) (pools.Worker, error) {
	w := pools.Worker{
		ID: s.Worker.ID, Model: s.Worker.Model, Role: pools.Role(s.Role), Address: s.URL, Connector: s.Worker.Connector,
		BlockSize: s.Worker.BlockSize, TotalKVBlocks: s.Worker.KVBlocks, MaxNumSeqs: s.Worker.MaxSeqs,
		MaxNumBatchedTokens: s.Worker.BatchTokens, ContextLength: s.Worker.Context, DataParallelRanks: s.Worker.Ranks,
		DeviceClass: s.Worker.DeviceClass, Transfer: s.Transfer, ModelInput: s.Worker.ModelInput,
		KVReplay: s.Events.Replay, KVTopic: s.Events.Topic,
	}
	if s.Engine != "auto" {
		w.Engine = s.Engine
	}
	if len(s.Worker.Taints) > 0 {
		w.Taints = s.Worker.Taints
	}
	switch s.Events.Endpoint {
	case "":
	case "none":
		w.KVEvents = "none"
	default:
		w.KVEvents, w.KVEndpoint = "zmq", s.Events.Endpoint
	}
	for _, label := range s.Worker.Topology {
		key, value, ok := strings.Cut(label, "=")
		if _, twice := w.Topology[key]; !ok || key == "" || twice {
			return w, r.Refuse("topology", fmt.Errorf("%q is no KEY=VALUE, or is there twice", label))
		}
		if w.Topology == nil {
			w.Topology = map[string]string{}
		}
		w.Topology[key] = value
	}
	return w, nil
}
