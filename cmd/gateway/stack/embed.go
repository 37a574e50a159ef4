package stack

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/router/events"
)

// EmbedConfig is how the embedded servers run. Port 0 picks a free one.
type EmbedConfig struct {
	Dir                string // etcd's data, and a folder nats of streams; empty is a temporary one
	EtcdPort, NATSPort int
	JetStream          bool // NATS keeps streams
}

// Embedded is an etcd and a NATS inside the process, on the loopback address.
type Embedded struct {
	etcd *discovery.EmbeddedEtcd
	nats *events.EmbeddedNATS
}

// Embed starts both at once, since an etcd takes its time.
func Embed(cfg EmbedConfig) (*Embedded, error) {
	e := &Embedded{}
	var starting errgroup.Group
	starting.Go(func() (err error) {
		if e.etcd, err = discovery.StartEtcd(discovery.EmbeddedEtcdConfig{Dir: cfg.Dir, Port: cfg.EtcdPort, Sync: cfg.Dir != ""}); err != nil {
			return fmt.Errorf("embed-etcd-port: %w", err)
		}
		return nil
	})
	kept := ""
	if cfg.Dir != "" {
		kept = filepath.Join(cfg.Dir, "nats")
	}
	nats, err := events.StartEmbeddedNATS(events.EmbeddedNATSConfig{Port: cfg.NATSPort, JetStream: cfg.JetStream, Dir: kept})
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
