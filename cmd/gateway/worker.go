package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/engine"
	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/events/zmtp"
)

// worker is what can be set about a simulated worker.
type worker struct {
	Role          string        `setting:"role"`
	ID            string        `setting:"id"`
	Host          string        `setting:"worker-host"`
	Port          int           `setting:"worker-port"`
	Advertise     string        `setting:"advertise-host"`
	KVBlocks      int           `setting:"total-kv-blocks"`
	MaxSeqs       int           `setting:"max-num-seqs"`
	BatchTokens   int           `setting:"max-num-batched-tokens"`
	Context       int           `setting:"context-length"`
	ModelInput    string        `setting:"model-input"`
	DeviceClass   string        `setting:"device-class"`
	Taints        []string      `setting:"taints"`
	Speedup       float64       `setting:"speedup"`
	Bandwidth     float64       `setting:"bandwidth-gbs"`
	BlockSize     int           `setting:"block-size"`
	Grace         time.Duration `setting:"worker-grace"`
	Drain         time.Duration `setting:"worker-drain"`
	ExitWithStdin bool          `setting:"exit-with-stdin"`
	Events        workerEvents
	Discovery     settings.Discovery
	Stream        settings.KVStream
	Logging       settings.Logging
}

// speedup is a row that dev and worker share.
var speedup = settings.Setting{
	Name: "speedup", Kind: settings.Float, Default: "1", Min: "0.001", Max: "100000",
	Help: "Divides every modelled time of the simulated engines. 1 is Qwen3-32B on 2×H100; 10 shows the same queues ten times as fast. " +
		"Far up, the gateway's own work begins to show.",
}

func workerGroup() settings.Group {
	return settings.Group{Title: "Worker", Settings: []settings.Setting{
		{
			Name: "role", Kind: settings.String, Default: "both",
			OneOf: []settings.Choice{
				{Name: "prefill", Help: "computes prompts and keeps their KV for a decode worker"},
				{Name: "decode", Help: "pulls KV and generates"},
				{Name: "both", Help: "serves requests alone"},
			},
			Help: "The pool this worker joins.",
		},
		{Name: "id", Kind: settings.String, Default: "worker-1", Help: "The worker's name in its fleet, of letters, digits, dots, dashes and underscores. Unique; a second worker of the same id replaces the first."},
		{Name: "worker-host", Kind: settings.String, Default: "127.0.0.1", Help: "Address to listen on, for requests and for the KV side channel."},
		{Name: "worker-port", Kind: settings.Int, Default: "0", Min: "0", Max: "65535", Help: "Port for requests; 0 picks a free one. The side channel always takes a free one."},
		{Name: "advertise-host", Kind: settings.String, Default: "", Help: "Host by which the gateway and other workers reach this one, where that is not worker-host: a container's name, for example."},
		{Name: "block-size", Kind: settings.Int, Default: "16", Min: "1", Max: "4096", Help: "Tokens in a KV block. All workers of a model must agree."},
		{Name: "total-kv-blocks", Kind: settings.Int, Default: "0", Min: "0", Max: "100000000", Help: "Size of the KV cache in blocks; 0 is 671,000 tokens' worth, what two H200s leave for Qwen3-32B. Fewer evict sooner."},
		{Name: "max-num-seqs", Kind: settings.Int, Default: "256", Min: "1", Max: "100000", Help: "Most sequences that run at once."},
		{Name: "max-num-batched-tokens", Kind: settings.Int, Default: "8192", Min: "1", Max: "1000000", Help: "Token budget of one step. More prefills faster and delays the decodes beside it."},
		{Name: "context-length", Kind: settings.Int, Default: "262144", Min: "2", Max: "100000000", Help: "Longest prompt and answer together, in tokens."},
		{
			Name: "model-input", Kind: settings.String, Default: "text",
			OneOf: []settings.Choice{
				{Name: "text", Help: "the client's text or messages as they came"},
				{Name: "tokens", Help: "token ids in the prompt's place; chats become completions"},
			},
			Help: "What the gateway sends as a prompt.",
		},
		{Name: "device-class", Kind: settings.String, Default: "sim", Help: "What the worker computes on, as registered."},
		{Name: "taints", Kind: settings.List, Default: "", Help: "Names that requests may require of a worker or prefer."},
		{Name: "bandwidth-gbs", Kind: settings.Float, Default: "50", Min: "0.001", Help: "Speed of KV transfers in GB/s: 50 is NDR400, 12.5 is 100 Gb Ethernet."},
		speedup,
		{Name: "worker-grace", Kind: settings.Duration, Default: "1s", Min: "0s", Help: "On SIGTERM, how long requests are still taken after the worker has deregistered, for gateways that chose it a moment before."},
		{Name: "worker-drain", Kind: settings.Duration, Default: "30s", Min: "0s", Help: "After the grace, how long running requests may take to end."},
		{
			Name: "worker-kv-events", Aliases: []string{"kv-events"}, Kind: settings.String, Default: "nats",
			OneOf: []settings.Choice{
				{Name: "nats", Help: "over NATS, where nats-url is given"},
				{Name: "zmq-vllm", Help: "over ZeroMQ, as vLLM does"},
				{Name: "zmq-sglang", Help: "over ZeroMQ, as SGLang does"},
				{Name: "none", Help: "not at all"},
			},
			Help: "How the KV events are published.",
		},
		{Name: "kv-events-endpoint", Kind: settings.String, Default: "tcp://*:5557", Validate: zmqEndpoint, Help: "With a zmq form of kv-events: where they are published. A host of *, 0.0.0.0 or :: is listened on, any other is connected to. Port 0 picks a free one."},
		{Name: "kv-events-replay-endpoint", Kind: settings.String, Default: "", Validate: zmqEndpoint, Help: "With a zmq form of kv-events: where the last ones are told again to whoever asks, as tcp://*:5558. Empty keeps none."},
		{Name: "kv-events-topic", Kind: settings.String, Default: "", Help: "With a zmq form of kv-events: the topic before each message."},
		{Name: "kv-events-buffer-steps", Kind: settings.Int, Default: "10000", Min: "1", Max: "10000000", Help: "With a zmq form of kv-events: how many messages are kept to be told again."},
		{
			Name: "kv-events-encoding", Kind: settings.String, Default: "maps",
			OneOf: []settings.Choice{
				{Name: "maps", Help: "as vLLM since 0.24.0 and SGLang since 0.5.20"},
				{Name: "arrays", Help: "as their releases before"},
			},
			Help: "With a zmq form of kv-events: how events are encoded.",
		},
		{Name: "exit-with-stdin", Kind: settings.Bool, Default: "false", Help: "End at once when standard input closes, so that a worker never outlives the process that started it."},
	}}
}

// work runs one simulated worker until SIGTERM, or until its standard input
// closes where that was asked for.
func work(ctx context.Context, args []string, p process) error {
	var s worker
	set := settings.NewSet(workerGroup(), settings.DiscoveryGroup(), settings.KVStreamGroup(), settings.LoggingGroup()).Beside(besides()...)
	r, err := resolve(set, "gateway worker [FLAGS]: run one simulated engine with vLLM's HTTP faces.\n"+
		"With --etcd-endpoints it registers there, with --nats-url it publishes its KV events there, or over ZeroMQ as vLLM and SGLang\ndo with --kv-events zmq-vllm or zmq-sglang; with neither it just serves.", args, p, &s)
	if err != nil {
		return err
	}
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	links, unlink, err := stack.ConnectDurably(s.Discovery.EtcdEndpoints, s.Discovery.NATSURL, streamConfig(s.Stream), log, nats.Name("tandem worker "+s.ID))
	if err != nil {
		return err
	}
	defer unlink()
	w, err := stack.NewWorker(s.config(), links, log)
	if err != nil {
		return usageError{err}
	}
	record := w.Record()
	log.Info("worker up", "worker", record.ID, "role", record.Role, "address", record.Address, "transfer", record.Transfer)
	if !s.ExitWithStdin {
		return w.Run(ctx)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	orphaned := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, p.stdin)
		orphaned <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-orphaned:
		w.Cut()
		return errors.Join(<-ended)
	}
}

// config is the worker's part of the settings.
func (s *worker) config() stack.WorkerConfig {
	c := stack.WorkerConfig{
		Engine: engine.Config{
			Model: stack.SimModel, Role: s.Role, ID: s.ID, BlockSize: s.BlockSize, TotalKVBlocks: s.KVBlocks,
			MaxNumSeqs: s.MaxSeqs, MaxNumBatchedTokens: s.BatchTokens, ContextLength: s.Context,
			Speedup: s.Speedup, BandwidthBytesPerSecond: s.Bandwidth * 1e9, DrainGrace: s.Grace,
		},
		Host: s.Host, Port: s.Port, Advertise: s.Advertise, ModelInput: s.ModelInput, DeviceClass: s.DeviceClass,
		Prefix: s.Discovery.Prefix, LeaseTTL: s.Discovery.LeaseTTL, Grace: s.Grace, Drain: s.Drain,
		KVEvents: s.Events.config(),
	}
	if len(s.Taints) > 0 {
		c.Taints = s.Taints
	}
	return c
}

// workerEvents is how a simulated worker publishes its KV events.
type workerEvents struct {
	How      string `setting:"worker-kv-events"`
	Endpoint string `setting:"kv-events-endpoint"`
	Replay   string `setting:"kv-events-replay-endpoint"`
	Topic    string `setting:"kv-events-topic"`
	Steps    int    `setting:"kv-events-buffer-steps"`
	Encoding string `setting:"kv-events-encoding"`
}

func (e workerEvents) config() stack.WorkerEvents {
	dialect, zmq := strings.CutPrefix(e.How, "zmq-")
	if !zmq {
		return stack.WorkerEvents{Off: e.How == "none"}
	}
	if e.Encoding == "arrays" {
		dialect += "-arrays"
	}
	d, err := events.ParseDialect(dialect)
	if err != nil {
		panic(err) // the table has no other choice
	}
	return stack.WorkerEvents{ZMQ: &events.ZMQPublisherConfig{
		Endpoint: e.Endpoint, ReplayEndpoint: e.Replay, Topic: e.Topic, BufferSteps: e.Steps, Dialect: d,
	}}
}

// zmqEndpoint refuses what is no endpoint; empty is none.
func zmqEndpoint(value any) error {
	text := value.(string)
	if text == "" {
		return nil
	}
	_, err := zmtp.ParseEndpoint(text)
	return err
}

// workerArgs are the flags that give a child what its parent was told.
func workerArgs(gateway settings.Gateway, d devSettings) []string {
	args := []string{
		"--speedup", fmt.Sprint(d.Speedup), "--discovery-prefix", gateway.Discovery.Prefix,
		"--lease-ttl", gateway.Discovery.LeaseTTL.String(), "--log-level", childLevel(gateway.Logging.Level),
		"--log-format", gateway.Logging.Format, "--model-input", d.ModelInput,
	}
	if n := gateway.Router.KVCacheBlockSize; n > 0 {
		args = append(args, "--block-size", fmt.Sprint(n))
	}
	return args
}

// childLevel keeps dev's terminal for the gateway: its children say what needs
// a look, and everything only when everything was asked for.
func childLevel(level string) string {
	if level == "info" {
		return "warn"
	}
	return level
}
