package stack

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/pools/discovery"
	"golang.org/x/sync/errgroup"
)

// EmbedConfig is how the embedded servers run. Port 0 picks a free one.
type EmbedConfig struct {
	Dir       string `flag:"embed-dir" help:"Folder in which the embedded etcd keeps its data, and the embedded NATS its stream of KV events with durable-kv-events. Empty is a temporary folder, of which nothing outlives the gateway; that is enough for etcd, because workers register again within their lease." when:"the temporary folder is not writable, or the stream must outlive the gateway"`
	EtcdPort  int    `flag:"embed-etcd-port" default:"2379" range:"0..65535" help:"Port of the embedded etcd, by which workers find a restarted gateway. 0 picks a free one, another at every start: workers of the last start are lost." when:"another gateway or an etcd runs on the machine"`
	NATSPort  int    `flag:"embed-nats-port" default:"4222" range:"0..65535" help:"Port of the embedded NATS; 0 as for embed-etcd-port." when:"another gateway or a NATS runs on the machine"`
	JetStream bool   // NATS keeps streams
}

// Embedded is an etcd and a NATS inside the process, on the loopback address.
type Embedded struct {
	etcd *discovery.EmbeddedEtcd
	nats *natsbus.Server
}

// Embed starts both at once, since an etcd takes its time.
func Embed(cfg EmbedConfig) (*Embedded, error) {
	e := &Embedded{}
	var starting errgroup.Group
	starting.Go(func() (err error) {
		if e.etcd, err = discovery.StartEtcd(cfg.Dir, cfg.EtcdPort, cfg.Dir != ""); err != nil {
			return fmt.Errorf("embed-etcd-port: %w", err)
		}
		return nil
	})
	kept := ""
	if cfg.Dir != "" {
		kept = filepath.Join(cfg.Dir, "nats")
	}
	nats, err := natsbus.StartServer(natsbus.ServerConfig{Port: cfg.NATSPort, JetStream: cfg.JetStream, Dir: kept})
	e.nats = nats
	if err != nil {
		err = fmt.Errorf("embed-nats-port: %w", err)
	}
	if err := errors.Join(err, starting.Wait()); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// EtcdURL is where etcd's clients connect.
func (e *Embedded) EtcdURL() string { return e.etcd.URL() }

// NATSURL is where NATS's clients connect.
func (e *Embedded) NATSURL() string { return e.nats.URL() }

// Close ends both. Clients should have gone before.
func (e *Embedded) Close() {
	if e.etcd != nil {
		e.etcd.Close()
	}
	if e.nats != nil {
		e.nats.Close()
	}
}
