package devfleet

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/models"
)

// WorkerSettings are those of a simulated worker.
type WorkerSettings struct {
	Engine          engine.Config `group:"Worker"`
	Host            string        `flag:"worker-host" default:"127.0.0.1" group:"Worker" help:"Address to listen on, for requests and the KV side channel."`
	Port            int           `flag:"worker-port" default:"0" range:"0..65535" group:"Worker" help:"Port for requests; 0 picks a free one. The side channel always uses a free one."`
	Advertise       string        `flag:"advertise-host" group:"Worker" help:"Host at which the gateway and other workers reach this one, if not worker-host."`
	ModelInput      string        `flag:"model-input" default:"text" oneof:"text=the client's text or messages|tokens=token ids" group:"Worker" help:"What the gateway sends as a prompt."`
	Tokenizers      []string      `flag:"tokenizer" sep:"space" group:"Worker" help:"The simulated model's tokenizer and chat template: a Hugging Face folder, as PATH or tandem-sim=PATH."`
	DeviceClass     string        `flag:"device-class" default:"sim" group:"Worker" help:"What the worker computes on, as registered."`
	Taints          []string      `flag:"taints" group:"Worker" help:"Names that requests may require of a worker or prefer."`
	Bandwidth       float64       `flag:"bandwidth-gbs" default:"50" range:"0.001.." group:"Worker" help:"Speed of KV transfers in GB/s: 50 is NDR400, 12.5 is 100 Gb Ethernet."`
	Grace           time.Duration `flag:"worker-grace" default:"1s" range:"0s.." group:"Worker" help:"On SIGTERM, how long requests are still accepted after deregistering."`
	Drain           time.Duration `flag:"worker-drain" default:"30s" range:"0s.." group:"Worker" help:"After the grace, how long running requests may take."`
	Events          workerEvents  `group:"Worker"`
	ExitWithStdin   bool          `flag:"exit-with-stdin" default:"false" group:"Worker" help:"On: end when standard input closes."`
	stack.Discovery `group:"Discovery"`
	LeaseTTL        time.Duration   `flag:"lease-ttl" default:"10s" range:"2s..1h" group:"Discovery" help:"How long a silent worker stays registered. Longer survives pauses of network or etcd."`
	Stream          stack.KVStream  `group:"KV stream"`
	Logging         observe.Logging `group:"Logging"`
	Traces          trace.ExporterConfig
}

// WorkerManual is the text of --help before the settings, WorkerFirst the settings that it shows.
const WorkerManual = "gateway worker [FLAGS]: run one simulated engine, with vLLM's HTTP endpoints unless --engine names another.\n" +
	"With --etcd-endpoints it registers there, with --nats-url it publishes its KV events there, or over ZeroMQ as vLLM and SGLang\n" +
	"do with --worker-kv-events zmq-vllm, zmq-sglang or zmq-trtllm; with neither it just serves.\n\n" +
	"  gateway worker --role decode --id decode-1 --etcd-endpoints http://127.0.0.1:2379 --nats-url nats://127.0.0.1:4222"

var WorkerFirst = []string{
	"role", "id", "engine", "engine-version", "worker-host", "worker-port", "advertise-host", "block-size", "total-kv-blocks",
	"max-num-seqs", "speedup", "worker-kv-events",
	"etcd-endpoints", "nats-url", "log-level",
}

// Run runs one simulated worker until ctx ends, or until stdin closes where that is set.
func (s *WorkerSettings) Run(ctx context.Context, stdin io.Reader, log *slog.Logger) error {
	links, unlink, err := stack.Connect(&s.Discovery, s.Stream.Config(), log, nats.Name("tandem worker "+s.Engine.ID))
	if err != nil {
		return err
	}
	defer unlink()
	cfg, err := s.config()
	if err != nil {
		return err
	}
	w, err := NewWorker(cfg, links, log)
	if err != nil {
		return setting.Errorf("worker", "%w", err)
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
		_, err := io.Copy(io.Discard, stdin)
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

// config returns the worker's configuration. The error names the setting.
func (s *WorkerSettings) config() (c WorkerConfig, err error) {
	c = WorkerConfig{
		Engine: s.Engine, Host: s.Host, Port: s.Port, Advertise: s.Advertise, ModelInput: s.ModelInput, DeviceClass: s.DeviceClass,
		Prefix: s.Prefix, LeaseTTL: s.LeaseTTL, Grace: s.Grace, Drain: s.Drain, KVEvents: s.Events.config(), Traces: s.Traces,
	}
	c.Engine.Sentences = true
	c.Engine.Model, c.Engine.BandwidthBytesPerSecond, c.Engine.DrainGrace = stack.SimModel, s.Bandwidth*1e9, s.Grace
	if len(s.Taints) > 0 {
		c.Taints = s.Taints
	}
	for _, pair := range s.Tokenizers {
		path, ok := strings.CutPrefix(pair, stack.SimModel+"=")
		if ok || !strings.Contains(pair, "=") {
			l, err := models.Load(path, tokenizerCacheBytes)
			if err != nil {
				return c, setting.Errorf("tokenizer", "%w", err)
			}
			c.Engine.Language = l
		}
	}
	return c, nil
}

// tokenizerCacheBytes bounds a worker's cache of tokenized prompts.
const tokenizerCacheBytes = 16 << 20

// workerEvents is how a simulated worker publishes its KV events.
type workerEvents struct {
	How      string `flag:"worker-kv-events,kv-events" default:"nats" oneof:"nats=over NATS, with nats-url|zmq-vllm=over ZeroMQ, as vLLM|zmq-sglang=over ZeroMQ, as SGLang|zmq-trtllm=over ZeroMQ, as TensorRT-LLM|none=not at all" help:"How KV events are published."`
	Endpoint string `flag:"kv-events-endpoint" default:"tcp://*:5557" help:"ZeroMQ: where events are published; * and :: are bound (SGLang 0.0.0.0, TensorRT-LLM any), other hosts connected to. Port 0 picks a free one."`
	Replay   string `flag:"kv-events-replay-endpoint" help:"ZeroMQ: where past messages can be requested, as tcp://*:5558. Empty keeps none."`
	Topic    string `flag:"kv-events-topic" help:"ZeroMQ: the topic of each message."`
	Steps    int    `flag:"kv-events-buffer-steps" default:"10000" range:"1..10000000" help:"ZeroMQ: past messages that are kept."`
	Encoding string `flag:"kv-events-encoding" default:"maps" oneof:"maps=as vLLM since 0.24.0 and SGLang since 0.5.20|arrays=as earlier releases" help:"ZeroMQ: how events of engine sim are encoded."`
}

// Validate checks the endpoints.
func (s *WorkerSettings) Validate() error {
	for _, e := range []struct{ flag, value string }{{"kv-events-endpoint", s.Events.Endpoint},
		{"kv-events-replay-endpoint", s.Events.Replay}} {
		if e.value == "" {
			continue
		}
		if _, err := zmq.ParseEndpoint(e.value); err != nil {
			return setting.Errorf(e.flag, "%w", err)
		}
	}
	return nil
}

func (e workerEvents) config() WorkerEvents {
	dialect, ok := strings.CutPrefix(e.How, "zmq-")
	if !ok {
		return WorkerEvents{Off: e.How == "none"}
	}
	if e.Encoding == "arrays" && dialect != wire.TensorRT.String() { // which has always sent maps
		dialect += "-arrays"
	}
	d, err := wire.ParseDialect(dialect)
	if err != nil {
		panic(err) // the table has no other choice
	}
	return WorkerEvents{ZMQ: &engine.PublisherConfig{
		Endpoint: e.Endpoint, ReplayEndpoint: e.Replay, Topic: e.Topic, BufferSteps: e.Steps, Dialect: d,
	}}
}
