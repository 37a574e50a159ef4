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
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/service"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/events/zmtp"
)

// attachSettings is what can be set about what stands beside an engine.
type attachSettings struct {
	URL       string `setting:"url"`
	Engine    string `setting:"engine"`
	Role      string `setting:"role"`
	Advertise string `setting:"advertise-url"`
	Worker    attachedWorker
	Events    attachedEvents
	Every     time.Duration `setting:"worker-health-interval"`
	Failures  int           `setting:"health-failures"`
	KeyFile   string        `setting:"worker-api-key-file"`
	Drain     time.Duration `setting:"attach-drain"`
	Address   string        `setting:"attach-address"`
	Discovery settings.Discovery
	Stream    settings.KVStream
	Logging   settings.Logging
}

// attachedWorker is what may be said about the engine in the place of asking it.
type attachedWorker struct {
	ID          string   `setting:"id"`
	Model       string   `setting:"model"`
	BlockSize   int      `setting:"block-size"`
	KVBlocks    int      `setting:"total-kv-blocks"`
	MaxSeqs     int      `setting:"max-num-seqs"`
	BatchTokens int      `setting:"max-num-batched-tokens"`
	Context     int      `setting:"context-length"`
	Ranks       int      `setting:"ranks"`
	ModelInput  string   `setting:"model-input"`
	Transfer    string   `setting:"transfer-endpoint"`
	DeviceClass string   `setting:"device-class"`
	Topology    []string `setting:"topology"`
	Taints      []string `setting:"taints"`
}

// attachedEvents is where the engine's KV events are, in the place of asking it.
type attachedEvents struct {
	Endpoint string `setting:"engine-kv-events"`
	Replay   string `setting:"engine-kv-replay"`
	Topic    string `setting:"engine-kv-topic"`
}

// attachFlags are the flags by what discovery calls the same.
var attachFlags = map[string]string{
	"kv-blocks": "total-kv-blocks", "device": "device-class", "transfer": "transfer-endpoint",
	"kv-events": "engine-kv-events", "kv-replay": "engine-kv-replay", "kv-topic": "engine-kv-topic",
}

func attachGroups() []settings.Group {
	asked := func(name, max, help string) settings.Setting {
		return settings.Setting{Name: name, Kind: settings.Int, Default: "0", Min: "0", Max: max, Help: help + " 0 asks the engine."}
	}
	given := settings.WorkersGroup()
	given.Settings = slices.DeleteFunc(given.Settings, func(s settings.Setting) bool {
		return s.Name != "worker-health-interval" && s.Name != "worker-api-key-file"
	})
	return []settings.Group{
		{Title: "Engine", Settings: []settings.Setting{
			{Name: "url", Kind: settings.String, Default: "", Validate: optionalURL, Help: "The engine's HTTP server as it is reached from here, as http://127.0.0.1:8000. It must be given."},
			{
				Name: "engine", Kind: settings.String, Default: "auto",
				OneOf: []settings.Choice{
					{Name: "auto", Help: "by what it calls itself"}, {Name: "vllm", Help: "vLLM"}, {Name: "sglang", Help: "SGLang"},
					{Name: "trtllm", Help: "TensorRT-LLM"}, {Name: "sim", Help: "a simulated worker"},
				},
				Help: "What the engine is. It only needs to be said where a proxy in front of the engine hides it.",
			},
			{
				Name: "role", Kind: settings.String, Default: "both",
				OneOf: []settings.Choice{
					{Name: "prefill", Help: "computes prompts and keeps their KV for a decode worker"},
					{Name: "decode", Help: "pulls KV and generates"},
					{Name: "both", Help: "serves requests alone"},
				},
				Help: "The pool that the engine joins.",
			},
			{
				Name: "advertise-url", Kind: settings.String, Default: "", Validate: optionalURL,
				Help: "URL by which gateways reach the engine, where that is not url: beside it in a pod, url is http://127.0.0.1:8000 and this has the pod's address.",
			},
			{Name: "transfer-endpoint", Kind: settings.String, Default: "", Help: "HOST:PORT of the engine's KV side channel, where a prefill worker needs one to be found."},
		}},
		{Title: "Worker", Settings: []settings.Setting{
			{Name: "id", Kind: settings.String, Default: "", Help: "The worker's name in its fleet, of letters, digits, dots, dashes and underscores. Unique. Empty takes host and port of advertise-url, or of url."},
			{Name: "model", Kind: settings.String, Default: "", Help: "Model to register, where the engine serves several or tells of none. Empty asks the engine."},
			asked("block-size", "4096", "Tokens in a KV block. All workers of a model must agree."),
			asked("total-kv-blocks", "2147483647", "Size of one rank's KV cache in blocks. TensorRT-LLM does not tell: without it the worker is never full, and lost KV events are only mended by a restart."),
			asked("max-num-seqs", "2147483647", "Most sequences that one rank runs at once."),
			asked("max-num-batched-tokens", "2147483647", "Token budget of one engine step."),
			asked("context-length", "2147483647", "Longest prompt and answer together, in tokens."),
			asked("ranks", "4096", "Data-parallel ranks behind the URL."),
			{
				Name: "model-input", Kind: settings.String, Default: "text",
				OneOf: []settings.Choice{
					{Name: "text", Help: "the client's text or messages as they came"},
					{Name: "tokens", Help: "token ids in the prompt's place; chats become completions"},
				},
				Help: "What the gateway sends as a prompt.",
			},
			{Name: "device-class", Kind: settings.String, Default: "", Help: "What the engine computes on, for policies that tell classes apart."},
			{Name: "topology", Kind: settings.List, Default: "", Help: "Labels that say where the engine stands, as rack=r7,zone=a."},
			{Name: "taints", Kind: settings.List, Default: "", Help: "Names that requests may require of a worker or prefer."},
		}},
		{Title: "KV events", Settings: []settings.Setting{
			{
				Name: "engine-kv-events", Kind: settings.String, Default: "",
				Help: "tcp://HOST:PORT where the engine's rank 0 publishes its KV events over ZeroMQ; each further rank has the next port. With a host of * they are " +
					"awaited on that port, for engines that connect. none does not follow them. Empty asks the engine, which vLLM tells from 0.31.0 on and SGLang in its server_info.",
			},
			{Name: "engine-kv-replay", Kind: settings.String, Default: "", Help: "tcp://HOST:PORT where rank 0 tells again what it said. It goes with engine-kv-events."},
			{Name: "engine-kv-topic", Kind: settings.String, Default: "", Help: "What the topic of the events begins with; empty takes all. It goes with engine-kv-events."},
		}},
		{Title: "Life", Settings: append(given.Settings,
			settings.Setting{
				Name: "health-failures", Kind: settings.Int, Default: "3", Min: "1", Max: "100",
				Help: "Failures in a row after which the worker is withdrawn; the questions come in quicker succession then. Fewer withdraw sooner, and for a hiccup.",
			},
			settings.Setting{
				Name: "attach-drain", Kind: settings.Duration, Default: "10s", Min: "0s", Max: "1h",
				Help: "On SIGTERM, after the worker has deregistered, how long its KV events are still told, for requests that it finishes. The engine is not stopped: give it at least as long.",
			},
			settings.Setting{
				Name: "attach-address", Kind: settings.String, Default: "", Validate: optionalHostPort,
				Help: "HOST:PORT for GET /live, /ready (200 while registered) and /metrics. Port 0 picks a free one and prints it. Empty has none.",
			},
		)},
		settings.DiscoveryGroup(), settings.KVStreamGroup(), settings.LoggingGroup(),
	}
}

// optionalHostPort accepts HOST:PORT, or nothing.
func optionalHostPort(value any) error {
	text := value.(string)
	if text == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		return errors.New("must be HOST:PORT, as 127.0.0.1:9090")
	}
	return nil
}

// attach stands beside a stock engine until SIGTERM.
func attach(ctx context.Context, args []string, p process) error {
	var s attachSettings
	set := settings.NewSet(attachGroups()...).Beside(besides()...)
	r, err := resolve(set, "gateway attach --url http://HOST:PORT --etcd-endpoints … [FLAGS]: stand beside a stock vLLM, SGLang or TensorRT-LLM.\n"+
		"It waits until the engine is well, asks it for its model, its limits and where it publishes KV events, registers it in etcd, tells its KV\n"+
		"events on over NATS with snapshots for whoever comes late, withdraws it when it fails and takes it back when it is well again. On SIGTERM\n"+
		"it deregisters first; the engine runs on. Gateways then find the engine as they find any worker: `gateway serve --etcd-endpoints …`.\n\n"+
		"  vllm serve MODEL --port 8000 --kv-events-config '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://*:5558\"}'\n"+
		"  gateway attach --url http://gpu-1:8000 --role prefill --etcd-endpoints http://etcd:2379 --nats-url nats://nats:4222\n\n"+
		"docs/kv-events.md has the flags of each engine.", args, p, &s)
	if err != nil {
		return err
	}
	cfg, err := s.config(r)
	if err != nil {
		return usageError{err}
	}
	if cfg.Probe.APIKey, err = workerKey(r, s.KeyFile, p.readFile); err != nil {
		return usageError{err}
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	reach := cmp.Or(cfg.Advertise, cfg.Engine.Given.Address)
	if here(reach) {
		log.Warn("gateways on other machines cannot reach this address: --advertise-url names another", "address", reach)
	}
	if s.Discovery.NATSURL == "" {
		log.Warn("without --nats-url the engine's KV events are not forwarded: the record names where the engine publishes them, and each gateway follows it by itself")
	}
	links, unlink, err := stack.ConnectDurably(s.Discovery.EtcdEndpoints, s.Discovery.NATSURL, streamConfig(s.Stream), log, nats.Name("tandem attach "+cfg.Engine.Given.ID))
	if err != nil {
		return err
	}
	defer unlink()
	reg := telemetry.NewRegistry()
	a, err := stack.NewAttach(cfg, links, log, prometheus.WrapRegistererWithPrefix("tandem_", reg))
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
	// The face stays until the rest has ended, so that a drain can be watched.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		return a.Run(failed)
	})
	group.Go(func() error {
		return service.ServeBeside(serving, ln, service.NewBeside(a, telemetry.Handler(reg)), log)
	})
	return group.Wait()
}

// here reports whether a URL leads to this machine alone.
func here(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	at, err := netip.ParseAddr(u.Hostname())
	return err == nil && at.IsLoopback() || u.Hostname() == "localhost"
}

// config is the stack's part of the settings.
func (s *attachSettings) config(r *settings.Resolved) (stack.AttachConfig, error) {
	c := stack.AttachConfig{
		Advertise: strings.TrimSuffix(s.Advertise, "/"),
		Probe:     discovery.ProberConfig{Every: s.Every, Failures: s.Failures, Seed: rand.Uint64()},
		Prefix:    s.Discovery.Prefix, LeaseTTL: s.Discovery.LeaseTTL, Follow: events.SubscriberConfig{Seed: rand.Uint64()}, Drain: s.Drain,
	}
	switch {
	case s.URL == "":
		return c, errors.New("url: the engine's address is missing, as --url http://127.0.0.1:8000")
	case len(s.Discovery.EtcdEndpoints) == 0:
		return c, errors.New("etcd-endpoints: the worker registers in etcd, so it must be named, as --etcd-endpoints http://HOST:2379")
	}
	for _, e := range []struct{ flag, value string }{{"engine-kv-replay", s.Events.Replay}, {"engine-kv-topic", s.Events.Topic}} {
		if e.value != "" && (s.Events.Endpoint == "" || s.Events.Endpoint == "none") {
			return c, r.Refuse(e.flag, errors.New("goes with engine-kv-events tcp://HOST:PORT: give both, or neither to have the engine asked"))
		}
	}
	given, err := s.given(r)
	if err != nil {
		return c, err
	}
	if c.Advertise != "" { // by which it is also named
		far := given
		far.Address = c.Advertise
		e, err := discovery.NewEndpoint(far)
		if err != nil {
			return c, refuseEngine(r, "advertise-url", err)
		}
		given.ID = e.Given.ID
	}
	if c.Engine, err = discovery.NewEndpoint(given); err != nil {
		return c, refuseEngine(r, "url", err)
	}
	// NewEndpoint has seen that it can be read.
	if at, err := zmtp.ParseEndpoint(given.KVEndpoint); err == nil && at.Binds() && s.Discovery.NATSURL == "" {
		return c, r.Refuse("engine-kv-events", errors.New("attach listens for this engine and forwards its events over NATS: give nats-url too, or the engine's host"))
	}
	return c, nil
}

// refuseEngine names the flag of what discovery finds wrong; address is the one of the address.
func refuseEngine(r *settings.Resolved, address string, err error) error {
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

// given is what was said of the engine.
func (s *attachSettings) given(r *settings.Resolved) (pools.Worker, error) {
	w := pools.Worker{
		ID: s.Worker.ID, Model: s.Worker.Model, Role: pools.Role(s.Role), Address: s.URL,
		BlockSize: s.Worker.BlockSize, TotalKVBlocks: s.Worker.KVBlocks, MaxNumSeqs: s.Worker.MaxSeqs,
		MaxNumBatchedTokens: s.Worker.BatchTokens, ContextLength: s.Worker.Context, DataParallelRanks: s.Worker.Ranks,
		DeviceClass: s.Worker.DeviceClass, Transfer: s.Worker.Transfer, ModelInput: s.Worker.ModelInput,
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
