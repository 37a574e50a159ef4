package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
)

type serveSettings struct {
	stack.GatewayConfig
	Embedded stack.EmbedConfig `group:"Embedding"`
}

// serve runs the gateway until SIGTERM, then drains it.
func serve(ctx context.Context, args []string, p process) error {
	var s serveSettings
	r, err := resolve(&s, "serve", args, p)
	if err != nil {
		return err
	}
	// With a remote index, the gateway follows KV events only if the user sets that.
	alone := len(s.Remote.URLs) > 0 && !r.IsSet("router-kv-events")
	s.Router.KVEvents = s.Router.KVEvents && !alone
	if err := s.together(r); err != nil {
		return &setting.Error{Err: err}
	}
	cfg, d := &s.GatewayConfig, &s.Discovery
	embedded := s.embeds() || len(d.EtcdEndpoints) == 0 && !s.Workers.Given()
	if err := cfg.Complete(); err != nil {
		return r.Placed(err)
	}
	defer paceCollector(os.Getenv)()
	cfg.Build, cfg.InForce = observe.ReadBuild(version), stack.Settings(r)
	cfg.Remote.ReadToken = remoteToken(cfg.Remote.TokenFile)
	if cfg.Remote.ReadToken != nil {
		if _, err := cfg.Remote.ReadToken(); err != nil {
			return r.Refuse("remote-index-token-file", err)
		}
	}
	key, err := workerKey(r, cfg.Workers.APIKeyFile)
	if err != nil {
		return &setting.Error{Err: err}
	}
	cfg.Workers.Probe.APIKey, cfg.Upstream.BearerToken = key, key
	log, err := newLogger(p, r, s.Logging)
	if err != nil {
		return err
	}
	log, _ = observe.Journaled(log)
	if err := readClasses(&cfg.Flow.Queue, r, p); err != nil {
		return err
	}
	if err := inject(cfg, r, p, log); err != nil {
		return err
	}
	if s.Embedded.OnlyNATS = !embedded && len(s.Embedded.Peers) > 0; s.Embedded.OnlyNATS {
		embedded = true
	}
	if embedded {
		s.Embedded.TLS, s.Embedded.Log = &cfg.Edge.TLS, log
		inside, err := embed(s.Embedded, s.Stream.Durable)
		if err != nil {
			return r.Placed(err)
		}
		defer inside.Close()
		inside.Join(d)
		if s.Stream.Durable && s.Embedded.Dir == "" {
			log.Warn("KV event stream is not persisted (set --embed-dir)")
		}
		switch {
		case s.Embedded.OnlyNATS:
		case inside.Secured():
			_, etcd, _ := net.SplitHostPort(strings.TrimPrefix(inside.EtcdURL(), "https://"))
			_, bus, _ := net.SplitHostPort(strings.TrimPrefix(inside.NATSURL(), "tls://"))
			fmt.Fprintf(p.stdout, "etcd and NATS run inside, with TLS and the password of --embed-password-file. Workers join by:\n"+
				"  --etcd-endpoints https://tandem@HOST:%s --etcd-password-file FILE --etcd-ca-file FILE\n"+
				"  --nats-url tls://tandem:PASSWORD@HOST:%s --nats-ca-file FILE\n\n", etcd, bus)
		default:
			fmt.Fprintf(p.stdout, "etcd and NATS run inside. Workers on this machine join by:\n  %s\n  %s\nEngines join by `%s attach`.\n\n",
				joinLine(p, "prefill", "prefill-1", inside, cfg), joinLine(p, "decode", "decode-1", inside, cfg), p.program)
		}
	}
	events := *d
	// Workers by URL and in pods publish over ZMQ or not at all.
	if !s.Router.KVEvents || len(d.EtcdEndpoints) == 0 {
		if r.IsSet("nats-url") && !cfg.Replicas.Shares() {
			log.Info("NATS not used: no worker publishes KV events there, or they are not followed", "nats_url", r.Source("nats-url"))
		}
		if s.Stream.Durable && !embedded {
			log.Info("KV events are not stored: they do not pass through NATS here", "durable_kv_events", r.Source("durable-kv-events"))
		}
		events.NATSURL = ""
	}
	if alone {
		log.Info("KV events are followed by the remote index only (set --router-kv-events to follow them here too)", "index", s.Remote.URLs)
	}
	links, unlink, err := stack.Connect(&events, s.Stream.Config(), log, nats.Name("tandem gateway"))
	if err != nil {
		return r.Placed(err)
	}
	defer unlink()
	if embedded && len(s.Embedded.Peers) == 0 {
		cfg.Replicas.Join = 0 // the embedded NATS is new: there is no group to join
	}
	if d.NATSURL != "" && cfg.Replicas.Shares() {
		links.Group, err = stack.JoinGroup(d, links.Certs, log)
		if err != nil {
			return r.Placed(err)
		}
		defer links.Group.Close()
	}
	g, err := stack.NewGateway(*cfg, links, log, observe.NewRegistry())
	if err != nil {
		return r.Placed(err)
	}
	addr, err := g.Listen()
	if err != nil {
		return err
	}
	defer onHangup(ctx, p, g.Reload, log)()
	scheme := "http"
	if cfg.Edge.TLS.CertFile != "" {
		scheme = "https"
	}
	if admin := g.AdminAddr(); admin != nil {
		fmt.Fprintf(p.stdout, "admin %s://%s\n", scheme, stack.LocalAddr(admin))
	}
	fmt.Fprintf(p.stdout, "listening %s://%s\n", scheme, stack.LocalAddr(addr))
	if err := notify(p.environ, "READY=1"); err != nil {
		log.Warn("supervisor not notified; it may stop this process as one that did not start", "error", err)
	}
	defer context.AfterFunc(ctx, func() { _ = notify(p.environ, "STOPPING=1") })() // optional
	var announcing sync.WaitGroup
	defer announcing.Wait()
	running, stop := context.WithCancel(ctx)
	defer stop()
	announcing.Go(func() {
		announce(running, p.stdout, g.Waiting, fmt.Sprintf("ready %s://%s", scheme, stack.LocalAddr(addr)))
	})
	return g.Run(ctx)
}

// announce prints ready once waiting returns nothing, and ends. After a second it prints each change of what is
// missing.
func announce(ctx context.Context, out io.Writer, waiting func() string, ready string) {
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for began, last := time.Now(), ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		switch now := waiting(); {
		case now == "":
			fmt.Fprintln(out, ready)
			return
		case now != last && time.Since(began) >= time.Second:
			fmt.Fprintln(out, now)
			last = now
		}
	}
}

// embed starts the embedded servers. A port in use is most often another gateway's.
func embed(e stack.EmbedConfig, durable bool) (*stack.Embedded, error) {
	e.JetStream = durable
	inside, err := stack.Embed(e)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w\nAnother gateway, etcd or NATS on this machine has the port. To share its workers, give --etcd-endpoints and --nats-url; "+
			"for a fleet apart, give --embed-ports other ports (0,0,0 picks free ones)", err)
	}
	return inside, err
}

// embeds reports whether etcd and NATS are to run inside. With replica-peers the address is that of NATS alone.
func (s *serveSettings) embeds() bool { return s.Embedded.Listen != "" && len(s.Embedded.Peers) == 0 }

// together refuses settings that do not go together.
func (s *serveSettings) together(r *setting.Resolved) error {
	etcd, byURL := len(s.EtcdEndpoints) > 0, s.Workers.Given()
	switch {
	case s.embeds() && (etcd || s.NATSURL != ""):
		return r.Refuse("embed-listen", errors.New("etcd-endpoints and nats-url are for servers outside; give those or embed-listen"))
	case len(s.Embedded.Peers) > 0 && s.NATSURL != "":
		return r.Refuse("replica-peers", errors.New("with nats-url the gateways have a NATS in common; give one of the two"))
	case len(s.Embedded.Peers) > 0 && s.Stream.Durable:
		return r.Refuse("durable-kv-events", errors.New("the NATS inside several gateways keeps no stream; name one outside by nats-url"))
	case len(s.Embedded.Peers) > 0 && !etcd && !byURL:
		return r.Refuse("replica-peers",
			errors.New("all gateways must find the same workers: give workers by URL, kubernetes-selector or etcd-endpoints"))
	case s.NATSURL != "" && !etcd && !byURL:
		return errors.New("etcd-endpoints: workers register in etcd; nats-url alone finds none")
	case etcd && s.NATSURL == "" && s.Router.KVEvents && len(s.Embedded.Peers) == 0:
		return errors.New("nats-url: KV events pass through NATS; name it, or set --no-router-kv-events")
	}
	return nil
}

// config prints the gateway's settings as a file for --config.
func config(_ context.Context, args []string, p process) error {
	var s serveSettings
	r, err := resolve(&s, "config", args, p)
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
