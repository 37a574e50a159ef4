package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/telemetry"
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
			Help: "Run etcd and NATS inside the gateway, on the loopback address. It is what happens when neither etcd-endpoints nor nats-url is given; " +
				"this says it outright. For one machine: workers elsewhere cannot reach them.",
		},
		{
			Name: "embed-dir", Kind: settings.String, Default: "",
			Help: "Folder in which the embedded etcd keeps its data. Empty is a temporary one: workers register anew after a restart within their lease anyway.",
		},
		{Name: "embed-etcd-port", Kind: settings.Int, Default: "0", Min: "0", Max: "65535", Help: "Port of the embedded etcd; 0 picks a free one and prints it."},
		{Name: "embed-nats-port", Kind: settings.Int, Default: "0", Min: "0", Max: "65535", Help: "Port of the embedded NATS; 0 picks a free one and prints it."},
	}}
}

// serve runs the gateway until SIGTERM, then lets everybody finish.
func serve(ctx context.Context, args []string, p process) error {
	var s struct {
		Embedding embedding
		Gateway   settings.Gateway
	}
	set := settings.NewSet(append(gatewayGroups(), serveGroup())...).Beside(besides()...)
	r, err := resolve(set, "gateway serve [FLAGS]: run the gateway in front of the workers that registered in etcd.\n"+
		"With neither --etcd-endpoints nor --nats-url it runs both inside itself and says how a worker can join.", args, p, &s)
	if err != nil {
		return err
	}
	d := s.Gateway.Discovery
	outside := len(d.EtcdEndpoints) > 0 || d.NATSURL != ""
	switch {
	case s.Embedding.Embed && outside:
		return usageError{r.Refuse("embed", errors.New("etcd-endpoints and nats-url are for servers outside; give those or embed"))}
	case outside && len(d.EtcdEndpoints) == 0:
		return usageError{errors.New("etcd-endpoints: workers register in etcd; nats-url alone finds none")}
	case outside && d.NATSURL == "" && s.Gateway.Router.KVEvents:
		return usageError{errors.New("nats-url: KV events pass through NATS; name it, or say --no-router-kv-events")}
	}
	cfg, err := gatewayConfig(s.Gateway)
	if err != nil {
		return usageError{err}
	}
	log, err := telemetry.NewLogger(p.stderr, s.Gateway.Logging.Level, s.Gateway.Logging.Format)
	if err != nil {
		return usageError{err}
	}
	if err := inject(&cfg, s.Gateway.Faults, r, p, log); err != nil {
		return err
	}
	if !outside {
		inside, err := stack.Embed(stack.EmbedConfig{Dir: s.Embedding.Dir, EtcdPort: s.Embedding.EtcdPort, NATSPort: s.Embedding.NATSPort})
		if err != nil {
			return err
		}
		defer inside.Close()
		d.EtcdEndpoints, d.NATSURL = []string{inside.EtcdURL()}, inside.NATSURL()
		fmt.Fprintf(p.stdout, "etcd and NATS run inside. A worker joins by:\n  gateway worker --role prefill --id NAME --etcd-endpoints %s --nats-url %s\n\n",
			inside.EtcdURL(), inside.NATSURL())
	}
	if !s.Gateway.Router.KVEvents {
		d.NATSURL = ""
	}
	links, unlink, err := stack.Connect(d.EtcdEndpoints, d.NATSURL, log, nats.Name("tandem gateway"))
	if err != nil {
		return err
	}
	defer unlink()
	g, err := stack.NewGateway(cfg, links, log, telemetry.NewRegistry())
	if err != nil {
		return err
	}
	addr, err := g.Listen()
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "ready http://%s\n", addr)
	return g.Run(ctx)
}
