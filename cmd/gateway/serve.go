package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/conf"
	"github.com/tandem-pd/tandem/internal/telemetry"
)

// serveSettings are the gateway's, and of the servers that it may bring.
type serveSettings struct {
	stack.GatewayConfig
	Embed    bool              `flag:"embed" default:"false" group:"Embedding" help:"On: run etcd and NATS inside the gateway, on the loopback address. That also happens when neither etcd-endpoints nor nats-url nor any worker by URL is given. For one machine: workers elsewhere cannot reach them." when:"you want to set it explicitly"`
	Embedded stack.EmbedConfig `group:"Embedding"`
}

// serveFirst are the settings that most people need.
var serveFirst = []string{
	"http-host", "http-port", "api-key-file", "admin-key-file", "router-mode", "router-kv-events", "queue-limit", "queue-timeout",
	"prefill-url", "decode-url", "worker-url", "workers-file", "worker-api-key-file", "etcd-endpoints", "nats-url", "log-level",
}

// serve runs the gateway until SIGTERM, then lets everybody finish.
func serve(ctx context.Context, args []string, p process) error {
	var s serveSettings
	r, err := resolve(&s, manual{"serve", "gateway serve [FLAGS]: run the gateway in front of workers that registered in etcd, or are given by their URL.\n" +
		"With none of --etcd-endpoints, --nats-url and workers by URL it runs etcd and NATS inside itself and prints how a worker can join.\n\n" +
		"  gateway serve --prefill-url http://P1:8000 --decode-url http://D1:8000\n" +
		"  gateway serve --etcd-endpoints http://ETCD:2379 --nats-url nats://NATS:4222", serveFirst}, args, p)
	if err != nil {
		return err
	}
	// KV events are left to the remote index, where there is one and the user did
	// not set that the gateway follows them too.
	alone := len(s.Remote.URLs) > 0 && !r.IsSet("router-kv-events")
	s.Router.KVEvents = s.Router.KVEvents && !alone
	if err := s.together(r); err != nil {
		return usageError{err}
	}
	cfg, d := &s.GatewayConfig, &s.Discovery
	embedded := s.Embed || len(d.EtcdEndpoints) == 0 && !s.Workers.Given()
	if err := cfg.Complete(); err != nil {
		return r.Placed(err)
	}
	defer paceCollector(os.Getenv)()
	cfg.Build = telemetry.ReadBuild(version)
	cfg.Remote.ReadToken = remoteToken(cfg.Remote.TokenFile)
	if cfg.Remote.ReadToken != nil {
		if _, err := cfg.Remote.ReadToken(); err != nil {
			return r.Refuse("remote-index-token-file", err)
		}
	}
	key, err := workerKey(r, cfg.Workers.APIKeyFile)
	if err != nil {
		return usageError{err}
	}
	cfg.Workers.Probe.APIKey, cfg.Upstream.BearerToken = key, key
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	if err := inject(cfg, r, p, log); err != nil {
		return err
	}
	if embedded {
		inside, err := embed(s.Embedded, s.Stream.Durable)
		if err != nil {
			return err
		}
		defer inside.Close()
		d.EtcdEndpoints, d.NATSURL = []string{inside.EtcdURL()}, inside.NATSURL()
		if s.Stream.Durable && s.Embedded.Dir == "" {
			log.Warn("KV events are kept for as long as this gateway runs, and no longer: --embed-dir names a folder that stays")
		}
		fmt.Fprintf(p.stdout, "etcd and NATS run inside. Workers on this machine join by:\n  %s\n  %s\nEngines join by `%s attach`.\n\n",
			joinLine(p, "prefill", "prefill-1", inside, cfg), joinLine(p, "decode", "decode-1", inside, cfg), p.program)
	}
	// Workers by URL publish over ZMQ or not at all.
	if !s.Router.KVEvents || len(d.EtcdEndpoints) == 0 {
		if r.IsSet("nats-url") {
			log.Info("NATS is not used: no worker publishes KV events there, or they are not followed", "nats_url", r.Source("nats-url"))
		}
		if s.Stream.Durable && !embedded {
			log.Info("No KV events are kept: they do not pass through NATS here", "durable_kv_events", r.Source("durable-kv-events"))
		}
		d.NATSURL = ""
	}
	if alone {
		log.Info("KV events are left to the remote index; with --router-kv-events they are followed here as well", "index", s.Remote.URLs)
	}
	links, unlink, err := stack.Connect(d.EtcdEndpoints, d.NATSURL, s.Stream.Config(), log, nats.Name("tandem gateway"))
	if err != nil {
		return err
	}
	defer unlink()
	g, err := stack.NewGateway(*cfg, links, log, telemetry.NewRegistry())
	if _, broken := errors.AsType[*conf.Error](err); broken {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	addr, err := g.Listen()
	if err != nil {
		return err
	}
	defer onHangup(ctx, p, g.Reload, log)()
	if admin := g.AdminAddr(); admin != nil {
		fmt.Fprintf(p.stdout, "admin http://%s\n", stack.LocalAddr(admin))
	}
	fmt.Fprintf(p.stdout, "ready http://%s\n", stack.LocalAddr(addr))
	return g.Run(ctx)
}

// embed starts the servers inside. A port that is taken is most often another gateway's.
func embed(e stack.EmbedConfig, durable bool) (*stack.Embedded, error) {
	e.JetStream = durable
	inside, err := stack.Embed(e)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w\nAnother gateway, etcd or NATS on this machine has the port. To share its workers, give --etcd-endpoints and --nats-url; "+
			"for a fleet apart, give --embed-etcd-port and --embed-nats-port other ports (0 picks free ones)", err)
	}
	return inside, err
}

// together refuses settings that do not go together.
func (s *serveSettings) together(r *settings.Resolved) error {
	etcd, byURL := len(s.EtcdEndpoints) > 0, s.Workers.Given()
	switch {
	case s.Embed && (etcd || s.NATSURL != ""):
		return r.Refuse("embed", errors.New("etcd-endpoints and nats-url are for servers outside; give those or embed"))
	case s.NATSURL != "" && !etcd && !byURL:
		return errors.New("etcd-endpoints: workers register in etcd; nats-url alone finds none")
	case etcd && s.NATSURL == "" && s.Router.KVEvents:
		return errors.New("nats-url: KV events pass through NATS; name it, or set --no-router-kv-events")
	}
	return nil
}

// config prints the gateway's settings. Its output is a file for --config.
func config(_ context.Context, args []string, p process) error {
	var s serveSettings
	r, err := resolve(&s, manual{"config", "gateway config [FLAGS]: print every setting of `gateway serve` in force as \"name: value  # source\".\n\n" +
		"  gateway config --router-mode round-robin > gateway.yaml\n  gateway serve --config gateway.yaml", serveFirst}, args, p)
	if err != nil {
		return err
	}
	if err := s.Complete(); err != nil {
		return r.Placed(err)
	}
	for _, name := range r.UnknownVariables() {
		fmt.Fprintf(p.stderr, "%s is no setting here and is passed over\n", name)
	}
	return r.Print(p.stdout)
}
