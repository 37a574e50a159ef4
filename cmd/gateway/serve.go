package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// embedding is whether the gateway brings its own etcd and NATS.
type embedding struct {
	Embed    bool   `setting:"embed"`
	Dir      string `setting:"embed-dir"`
	EtcdPort int    `setting:"embed-etcd-port"`
	NATSPort int    `setting:"embed-nats-port"`
}

func serveGroup() settings.Group {
	return settings.Group{Title: "Embedding", Settings: []settings.Setting{
		{
			Name: "embed", Kind: settings.Bool, Default: "false",
			Help: "Run etcd and NATS inside the gateway, on the loopback address. It is what happens when neither etcd-endpoints nor nats-url nor any worker " +
				"by URL is given; this says it outright. For one machine: workers elsewhere cannot reach them.",
		},
		{
			Name: "embed-dir", Kind: settings.String, Default: "",
			Help: "Folder in which the embedded etcd keeps its data, and the embedded NATS its stream of KV events with durable-kv-events. Empty is a temporary one, " +
				"of which nothing outlives the gateway: workers register anew within their lease anyway, and KV events are asked for again.",
		},
		{
			Name: "embed-etcd-port", Kind: settings.Int, Default: "2379", Min: "0", Max: "65535",
			Help: "Port of the embedded etcd. Workers find a gateway that was started again by it. 0 picks a free one, another at every start: workers of the last start are lost.",
		},
		{
			Name: "embed-nats-port", Kind: settings.Int, Default: "4222", Min: "0", Max: "65535",
			Help: "Port of the embedded NATS; 0 as for embed-etcd-port.",
		},
	}}
}

// serve runs the gateway until SIGTERM, then lets everybody finish.
func serve(ctx context.Context, args []string, p process) error {
	var s struct {
		Embedding embedding
		Gateway   settings.Gateway
	}
	set := settings.NewSet(append(gatewayGroups(), serveGroup())...).Beside(besides()...)
	r, err := resolve(set, "gateway serve [FLAGS]: run the gateway in front of workers that registered in etcd, or are given by their URL.\n"+
		"With none of --etcd-endpoints, --nats-url and workers by URL it runs etcd and NATS inside itself and says how a worker can join.", args, p, &s)
	if err != nil {
		return err
	}
	alone := remoteAlone(&s.Gateway, r)
	d := &s.Gateway.Discovery
	if err := together(*d, s.Gateway, s.Embedding, r); err != nil {
		return usageError{err}
	}
	byURL := s.Gateway.Workers.Given()
	embedded := s.Embedding.Embed || len(d.EtcdEndpoints) == 0 && !byURL
	cfg, err := gatewayConfig(s.Gateway)
	if err != nil {
		return usageError{err}
	}
	cfg.Remote.ReadToken = remoteToken(s.Gateway.Remote.TokenFile, p.readFile)
	if cfg.Remote.ReadToken != nil {
		if _, err := cfg.Remote.ReadToken(); err != nil {
			return usageError{r.Refuse("remote-index-token-file", err)}
		}
	}
	key, err := workerKey(r, s.Gateway.Workers.APIKeyFile, p.readFile)
	if err != nil {
		return usageError{err}
	}
	cfg.Workers.Probe.APIKey, cfg.Upstream.BearerToken = key, key
	log, err := newLogger(p, r, s.Gateway.Logging)
	if err != nil {
		return err
	}
	if err := inject(&cfg, s.Gateway.Faults, r, p, log); err != nil {
		return err
	}
	if embedded {
		inside, err := embed(s.Embedding, s.Gateway.KVStream.Durable)
		if err != nil {
			return err
		}
		defer inside.Close()
		d.EtcdEndpoints, d.NATSURL = []string{inside.EtcdURL()}, inside.NATSURL()
		if s.Gateway.KVStream.Durable && s.Embedding.Dir == "" {
			log.Warn("KV events are kept for as long as this gateway runs, and no longer: --embed-dir names a folder that stays")
		}
		fmt.Fprintf(p.stdout, "etcd and NATS run inside. Workers on this machine join by:\n  %s\n  %s\nEngines join by `%s attach`.\n\n",
			joinLine(p, "prefill", "prefill-1", inside, s.Gateway), joinLine(p, "decode", "decode-1", inside, s.Gateway), p.program)
	}
	// Workers by URL publish over ZMQ or not at all.
	if !s.Gateway.Router.KVEvents || len(d.EtcdEndpoints) == 0 {
		if r.IsSet("nats-url") {
			log.Info("NATS is not used: no worker publishes KV events there, or they are not followed", "nats_url", r.Source("nats-url"))
		}
		if s.Gateway.KVStream.Durable && !embedded {
			log.Info("No KV events are kept: they do not pass through NATS here", "durable_kv_events", r.Source("durable-kv-events"))
		}
		d.NATSURL = ""
	}
	if alone {
		log.Info("KV events are left to the remote index; with --router-kv-events they are followed here as well", "index", s.Gateway.Remote.URLs)
	}
	links, unlink, err := stack.ConnectDurably(d.EtcdEndpoints, d.NATSURL, streamConfig(s.Gateway.KVStream), log, nats.Name("tandem gateway"))
	if err != nil {
		return err
	}
	defer unlink()
	g, err := stack.NewGateway(cfg, links, log, telemetry.NewRegistry())
	if _, broken := errors.AsType[*discovery.FileError](err); broken {
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

// embed starts the servers inside. A port that is taken is most often another
// gateway's.
func embed(e embedding, durable bool) (*stack.Embedded, error) {
	inside, err := stack.Embed(stack.EmbedConfig{Dir: e.Dir, EtcdPort: e.EtcdPort, NATSPort: e.NATSPort, JetStream: durable})
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w\nAnother gateway, etcd or NATS on this machine has the port. To share its workers, give --etcd-endpoints and --nats-url; "+
			"for a fleet apart, give --embed-etcd-port and --embed-nats-port other ports (0 picks free ones)", err)
	}
	return inside, err
}

// joinLine is the command by which a simulated worker joins a fleet whose etcd
// and NATS are inside the gateway. more is what it is given besides; a value that
// is its default anyway is left out.
func joinLine(p process, role, id string, inside *stack.Embedded, s settings.Gateway, more ...string) string {
	line := fmt.Sprintf("%s worker --role %s --id %s --etcd-endpoints %s", p.program, role, id, inside.EtcdURL())
	if s.Router.KVEvents {
		line += " --nats-url " + inside.NATSURL()
	}
	if s.Router.KVEvents && s.KVStream.Durable {
		line += " --durable-kv-events"
	}
	more = append(more, "--discovery-prefix", s.Discovery.Prefix)
	if n := s.Router.KVCacheBlockSize; n > 0 {
		more = append(more, "--block-size", fmt.Sprint(n))
	}
	defaults := map[string]string{}
	for _, row := range settings.NewSet(workerGroup(), settings.DiscoveryGroup()).Settings() {
		defaults["--"+row.Name] = row.Default
	}
	for pair := range slices.Chunk(more, 2) {
		if defaults[pair[0]] != pair[1] {
			line += " " + strings.Join(pair, " ")
		}
	}
	return line
}

// together refuses settings that do not go together.
func together(d settings.Discovery, s settings.Gateway, e embedding, r *settings.Resolved) error {
	etcd, byURL := len(d.EtcdEndpoints) > 0, s.Workers.Given()
	switch {
	case e.Embed && (etcd || d.NATSURL != ""):
		return r.Refuse("embed", errors.New("etcd-endpoints and nats-url are for servers outside; give those or embed"))
	case d.NATSURL != "" && !etcd && !byURL:
		return errors.New("etcd-endpoints: workers register in etcd; nats-url alone finds none")
	case etcd && d.NATSURL == "" && s.Router.KVEvents:
		return errors.New("nats-url: KV events pass through NATS; name it, or say --no-router-kv-events")
	}
	return nil
}
