package devfleet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/trace"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// WorkerConfig configures a simulated worker.
type WorkerConfig struct {
	Engine engine.Config
	// Host and Port are where it serves; port 0 picks a free one. The KV side
	// channel takes a free port of the same host.
	Host string
	Port int
	// Advertise is the host that others reach it by; empty means Host.
	Advertise string
	// ModelInput is the form of prompts that it takes: "text" or "tokens".
	ModelInput  string
	DeviceClass string
	// Taints are names that requests may require of it or prefer.
	Taints []string
	// Prefix and LeaseTTL are discovery's.
	Prefix   string
	LeaseTTL time.Duration
	// Grace is how long it still takes requests after it has deregistered, for gateways that chose it a moment ago.
	Grace time.Duration
	// Drain is how long requests in flight may take when it stops.
	Drain time.Duration
	// KVEvents is how it publishes its KV events.
	KVEvents WorkerEvents
	// Traces is where a span of each request goes.
	Traces trace.ExporterConfig
	// Listen replaces net.Listen, for tests in memory. Its addresses are TCP's.
	Listen func(network, address string) (net.Listener, error)
}

// WorkerEvents is how a worker publishes its KV events: over NATS if there is a bus, unless a field sets another way.
type WorkerEvents struct {
	// Off is not at all.
	Off bool
	// ZMQ is as engines do by themselves; nil for not so.
	ZMQ *engine.PublisherConfig
	// Alter stands between the engine and its publisher, for tests of what wrong
	// events do; nil passes them on. It is called in the events' order.
	Alter func([]wire.Event) []wire.Event
}

// publisher publishes an engine's events. Publish does not wait.
type publisher interface {
	Publish(es []wire.Event) error
	Run(ctx context.Context) error
}

// Worker is a simulated engine that serves, publishes and registers itself.
type Worker struct {
	cfg       WorkerConfig
	links     stack.Links
	log       *slog.Logger
	Engine    *engine.Server
	publisher publisher       // nil without KV events
	traces    *trace.Exporter // nil where no request is traced
	serve     net.Listener
	transfer  net.Listener
	registrar *discovery.Registrar
	record    pools.Worker
	cut       sync.Once
	dead      chan struct{}   // closed by Cut
	silenced  context.Context // ends when the engine's core dies

	closeEvents func() error // gives back what KV events are published on, where it does not run
}

// NewWorker opens the worker's addresses and makes its engine. Nothing runs before Run.
func NewWorker(cfg WorkerConfig, links stack.Links, log *slog.Logger) (*Worker, error) {
	listen := cfg.Listen
	if listen == nil {
		listen = net.Listen
	}
	var err error
	w := &Worker{cfg: cfg, links: links, log: log, dead: make(chan struct{}), closeEvents: func() error { return nil }}
	if w.serve, err = listen("tcp", net.JoinHostPort(cfg.Host, fmt.Sprint(cfg.Port))); err != nil {
		return nil, fmt.Errorf("port: %w", err)
	}
	if w.transfer, err = listen("tcp", net.JoinHostPort(cfg.Host, "0")); err != nil {
		return nil, errors.Join(fmt.Errorf("transfer port: %w", err), w.serve.Close())
	}
	w.serve, w.transfer = mortalListener{w.serve, w.dead}, mortalListener{w.transfer, w.dead}
	if err := w.build(); err != nil {
		w.traces.Close()
		return nil, errors.Join(err, w.serve.Close(), w.transfer.Close(), w.closeEvents())
	}
	return w, nil
}

// dialects are the forms of KV events by engine and release. The simulated engine's own is a setting.
var dialects = map[string]func(before func(release string) bool) wire.Dialect{
	"vllm":   wire.VLLMOf,
	"sglang": wire.SGLangOf,
}

func (w *Worker) build() error {
	host := w.cfg.Advertise
	if host == "" {
		host = w.cfg.Host
	}
	if err := w.openTraces(); err != nil {
		return err
	}
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	incarnation := hex.EncodeToString(raw[:])
	cfg := w.cfg.Engine
	cfg.Incarnation = incarnation
	cfg.TransferHost, cfg.TransferPort = host, w.transfer.Addr().(*net.TCPAddr).Port
	if zmq, of := w.cfg.KVEvents.ZMQ, dialects[cfg.Engine]; zmq != nil && of != nil { // its releases differ in more than the encoding
		own := *zmq
		own.Dialect = of(cfg.Before)
		w.cfg.KVEvents.ZMQ = &own
	}
	if zmq := w.cfg.KVEvents.ZMQ; zmq != nil {
		cfg.Reannounces = zmq.Dialect == wire.VLLM
	}
	how, err := w.openEvents(host)
	if err != nil {
		return err
	}
	if how.KVEvents != "none" || w.publisher != nil {
		cfg.OnEvents = w.publish
	}
	cfg.EventSources = w.eventSources(how)
	w.silenced, cfg.OnDeath = context.WithCancel(context.Background())
	if w.Engine, err = engine.NewServer(cfg, w.log); err != nil {
		return err
	}
	cfg = w.Engine.Config()
	w.record = pools.Worker{
		ID: cfg.ID, Incarnation: incarnation, Model: cfg.Model, Role: pools.Role(cfg.Role), Engine: cfg.Engine,
		Address:   "http://" + net.JoinHostPort(host, fmt.Sprint(w.serve.Addr().(*net.TCPAddr).Port)),
		BlockSize: cfg.BlockSize, TotalKVBlocks: cfg.TotalKVBlocks, MaxNumSeqs: cfg.MaxNumSeqs,
		MaxNumBatchedTokens: cfg.MaxNumBatchedTokens, ContextLength: cfg.ContextLength, DataParallelRanks: 1,
		DeviceClass: w.cfg.DeviceClass, Taints: w.cfg.Taints,
		Transfer:  net.JoinHostPort(host, fmt.Sprint(cfg.TransferPort)),
		Connector: cfg.Connector, TransferIDs: []string{cfg.EngineID()},
		ModelInput: w.cfg.ModelInput, IgnoresSuffix: cfg.Engine == "sglang",
		KVEvents: how.KVEvents, KVEndpoint: how.KVEndpoint, KVReplay: how.KVReplay, KVTopic: how.KVTopic,
	}
	if cfg.Engine == "trtllm" {
		w.record.TransferIDs = []string{cfg.ContextEndpoint()}
	}
	if cfg.Engine != "sim" {
		w.record.EngineVersion = cfg.EngineVersion
	}
	if err := w.record.Validate(); err != nil {
		return err
	}
	if w.links.Etcd != nil {
		if w.registrar, err = discovery.NewRegistrar(w.links.Etcd, w.record, w.cfg.Prefix, w.cfg.LeaseTTL, w.log); err != nil {
			return err
		}
	}
	if how.KVEvents != "nats" {
		return nil
	}
	pool := &pools.Pool{Model: w.record.Model, Role: w.record.Role}
	w.publisher, err = view.NewPublisher(view.PublisherConfig{
		Source: wire.Source{Pool: pool.Name(), Worker: w.record.ID, Rank: 0},
	}, w.links.Bus, w.log)
	return err
}

// openEvents opens the publisher's endpoints, and returns their part of the record.
func (w *Worker) openEvents(host string) (how pools.Worker, err error) {
	how.KVEvents = "none"
	switch over := w.cfg.KVEvents.ZMQ; {
	case w.cfg.KVEvents.Off:
	case over == nil && w.links.Bus != nil:
		how.KVEvents = "nats"
	case over != nil:
		p, err := engine.NewPublisher(*over)
		if err != nil {
			return how, err
		}
		w.publisher, w.closeEvents = p, p.Close
		at, replay := p.Ports()
		if at == 0 {
			break // it connects: the gateway's address is configured by hand
		}
		how.KVEvents, how.KVTopic = "zmq", over.Topic
		how.KVEndpoint = "tcp://" + net.JoinHostPort(host, fmt.Sprint(at-over.Rank))
		if replay > 0 {
			how.KVReplay = "tcp://" + net.JoinHostPort(host, fmt.Sprint(replay-over.Rank))
		}
	}
	return how, nil
}

// eventSources describes the engine's publisher, as vLLM does.
func (w *Worker) eventSources(how pools.Worker) map[string]engine.EventSource {
	zmq := w.cfg.KVEvents.ZMQ
	if how.KVEvents != "zmq" {
		return nil
	}
	any := func(endpoint string) string { // each is bound: the caller knows the host
		return "tcp://*" + endpoint[strings.LastIndexByte(endpoint, ':'):]
	}
	s := engine.EventSource{Enabled: true, Publisher: "zmq", Endpoint: any(how.KVEndpoint), Topic: zmq.Topic,
		BufferSteps: zmq.BufferSteps, HighWater: zmq.HighWater}
	if how.KVReplay != "" {
		s.Replay = any(how.KVReplay)
	}
	return map[string]engine.EventSource{"0": s}
}

// Record returns the worker's record.
func (w *Worker) Record() pools.Worker { return w.record }

// Run serves until ctx ends, then drains: it deregisters, accepts requests for the grace time, finishes them, and ends.
func (w *Worker) Run(ctx context.Context) error {
	defer w.traces.Close()
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, inner := errgroup.WithContext(inner)
	group.Go(func() error { return w.Engine.Run(inner) })
	group.Go(func() error { return w.links.Certs.Run(inner) })
	front := &http.Server{Handler: w.Engine.Handler(), ReadHeaderTimeout: 30 * time.Second}
	side := &http.Server{Handler: w.Engine.TransferHandler(), ReadHeaderTimeout: 30 * time.Second}
	group.Go(func() error { return serveHTTP(front, w.serve, w.log) })
	group.Go(func() error { return serveHTTP(side, w.transfer, w.log) })
	if w.publisher != nil {
		group.Go(func() error {
			publishing, end := context.WithCancel(inner)
			defer end()
			defer context.AfterFunc(w.silenced, end)()
			return w.publisher.Run(publishing)
		})
	}
	if w.cfg.Engine.Engine == "sglang" {
		context.AfterFunc(w.silenced, func() { time.AfterFunc(w.Engine.Config().CrashSilence, w.Cut) })
	}
	if w.registrar != nil {
		group.Go(func() error { return w.registrar.Run(inner) })
	}
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-inner.Done(): // another part failed
		case <-w.dead:
		}
		select {
		case <-w.dead: // also where ctx has ended too
			_, _ = front.Close(), side.Close()
			stop()
			return nil
		default:
		}
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Grace+w.cfg.Drain)
		defer cancel()
		if w.registrar != nil {
			if err := w.registrar.Deregister(limit); err != nil {
				w.log.Warn("deregistration failed; the registration expires with its lease", "worker", w.record.ID, "error", err)
			}
		}
		if err := w.Engine.Drain(limit); err != nil {
			w.log.Warn("drain time over; unfinished requests are cut off", "worker", w.record.ID, "error", err)
		}
		// Drained engines may still have bytes in the server's buffers.
		flush, cancelFlush := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancelFlush()
		_ = front.Shutdown(flush)
		_, _ = front.Close(), side.Close()
		stop()
		return nil
	})
	return group.Wait()
}

// Cut closes the worker's addresses and every connection at once, as a death of the process would. Run then returns.
func (w *Worker) Cut() {
	w.cut.Do(func() { close(w.dead) })
}

// publish hands the engine's events to the publisher. The engine waits for it,
// so that it must not; Publish only hands messages to the bus.
func (w *Worker) publish(es []engine.Event) {
	out := make([]wire.Event, 0, len(es))
	for _, e := range es {
		out = append(out, eventOf(e, w.cfg.Engine.Engine))
	}
	if alter := w.cfg.KVEvents.Alter; alter != nil {
		out = alter(out)
	}
	if err := w.publisher.Publish(out); err != nil {
		w.log.Warn("KV events not published: subscribers will see a gap", "worker", w.record.ID, "error", err)
	}
}

// eventOf gives an engine's event its published form. SGLang names a salt in a field; vLLM has it among the extra keys
// of a chain's first block, behind the adapter, which stands in each block's.
func eventOf(e engine.Event, speaks string) wire.Event {
	out := wire.Event{Hashes: make([]wire.Hash, len(e.Hashes))}
	for i, h := range e.Hashes {
		out.Hashes[i] = wire.Hash(h)
	}
	if speaks == "vllm" {
		out.GroupIdx = wire.OptInt{Value: int64(e.Group), Set: true}
	}
	switch e.Kind {
	case engine.Stored:
		if out.Kind = wire.Stored; speaks == "vllm" {
			out.SpecKind = "full_attention"
			if e.Window > 0 {
				out.SpecKind, out.SlidingWindow = "sliding_window", wire.OptInt{Value: int64(e.Window), Set: true}
			}
		}
		out.Parent, out.HasParent = wire.Hash(e.Parent), e.HasParent
		if e.LoRA != "" && speaks != "sglang" { // older releases send the number alone
			out.LoraID = wire.OptInt{Value: 1 + int64(crc32.ChecksumIEEE([]byte(e.LoRA))), Set: true}
		}
		out.Tokens, out.BlockSize, out.Medium, out.LoraName, out.CacheSalt = e.TokenIDs, e.BlockSize, "GPU", e.LoRA, e.Salt
		if speaks != "sglang" && (e.LoRA != "" || e.Salt != "") {
			out.CacheSalt, out.ExtraKeys = "", make([][]wire.ExtraKey, len(e.Hashes))
			for i := range out.ExtraKeys {
				if e.LoRA != "" {
					out.ExtraKeys[i] = append(out.ExtraKeys[i], wire.ExtraKey{Text: e.LoRA})
				}
				if i == 0 && !e.HasParent && e.Salt != "" {
					out.ExtraKeys[i] = append(out.ExtraKeys[i], wire.ExtraKey{Text: e.Salt})
				}
			}
		}
	case engine.Removed:
		out.Kind, out.Medium = wire.Removed, "GPU"
	case engine.Cleared:
		out = wire.Event{Kind: wire.Cleared}
	}
	return out
}

// serveHTTP serves until the server is closed, which is no error.
func serveHTTP(s *http.Server, ln net.Listener, log *slog.Logger) error {
	if err := http1.ListenHTTP(s, ln, log); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
