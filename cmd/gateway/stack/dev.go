package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/events"
)

// DevConfig is the fleet of `gateway dev`.
type DevConfig struct {
	Gateway GatewayConfig
	// Prefill and Decode are the numbers of workers.
	Prefill, Decode int
	// Worker is the workers' common part; role and id are filled in.
	Worker WorkerConfig
	// InProcess runs the workers in this process instead of as children.
	InProcess bool
	// KVEvents says whether workers publish and the gateway follows.
	KVEvents bool
	// Stream keeps the KV events; nil for not so.
	Stream *events.StreamConfig
	// Binary is the program to run workers with, and WorkerArgs what its
	// worker command is given beside role, id and where to connect.
	Binary     string
	WorkerArgs []string
	// Restart starts a worker process again that was killed.
	Restart bool
	// Out is where the table of what runs where goes, and a row for each worker
	// that was started again.
	Out io.Writer
}

// Dev is a whole fleet on one machine: embedded NATS and etcd, simulated
// workers, the gateway.
type Dev struct {
	cfg      DevConfig
	log      *slog.Logger
	inner    *Embedded
	unlink   func()
	gateway  *Gateway
	addr     net.Addr
	children []*child
	inside   []*Worker
	changes  changes // of the roster
}

// StartDev starts everything but the workers. Close must be called whatever
// follows.
func StartDev(cfg DevConfig, log *slog.Logger, reg *prometheus.Registry) (_ *Dev, err error) {
	d := &Dev{cfg: cfg, log: log, changes: changes{next: make(chan struct{})}}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.inner, err = Embed(EmbedConfig{JetStream: cfg.Stream != nil}); err != nil {
		return nil, err
	}
	natsURL := ""
	if cfg.KVEvents {
		natsURL = d.inner.NATSURL()
	}
	links, unlink, err := ConnectDurably([]string{d.inner.EtcdURL()}, natsURL, cfg.Stream, log, nats.Name("tandem dev"))
	if err != nil {
		return nil, err
	}
	d.unlink = unlink
	if d.gateway, err = NewGateway(cfg.Gateway, links, log, reg); err != nil {
		return nil, err
	}
	d.gateway.Roster.OnChange(d.changes.happened)
	if d.addr, err = d.gateway.Listen(); err != nil {
		return nil, err
	}
	if cfg.InProcess {
		return d, d.makeWorkers(links)
	}
	return d, d.startChildren()
}

// workerIDs lists the fleet's workers in the order of the table.
func (d *Dev) workerIDs(each func(role pools.Role, id string) error) error {
	for role, n := range map[pools.Role]int{pools.Prefill: d.cfg.Prefill, pools.Decode: d.cfg.Decode} {
		for i := range n {
			if err := each(role, fmt.Sprintf("%s-%d", role, i+1)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Dev) makeWorkers(links Links) error {
	return d.workerIDs(func(role pools.Role, id string) error {
		cfg := d.cfg.Worker
		cfg.Engine.Role, cfg.Engine.ID = string(role), id
		w, err := NewWorker(cfg, links, d.log)
		if err == nil {
			d.inside = append(d.inside, w)
		}
		return err
	})
}

// Gateway is the fleet's gateway.
func (d *Dev) Gateway() *Gateway { return d.gateway }

// Inside are the embedded servers.
func (d *Dev) Inside() *Embedded { return d.inner }

// URL is where clients on this machine reach the gateway.
func (d *Dev) URL() string { return "http://" + LocalAddr(d.addr) }

// AdminURL is where administration is reached when it has an address of its
// own; empty when it has none.
func (d *Dev) AdminURL() string {
	if addr := d.gateway.AdminAddr(); addr != nil {
		return "http://" + LocalAddr(addr)
	}
	return ""
}

// LocalAddr is an address that a client on this machine can use: of one that
// listens everywhere, the loopback.
func LocalAddr(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
	}
	return addr.String()
}

// Workers are the in-process workers.
func (d *Dev) Workers() []*Worker { return d.inside }

// Run serves until ctx ends. ready is called once every worker has joined; its
// error, too, ends the run.
func (d *Dev) Run(ctx context.Context, ready func(ctx context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	up := make(chan struct{})
	group.Go(func() error { return d.gateway.Run(ctx) })
	for _, w := range d.inside {
		group.Go(func() error { return w.Run(ctx) })
	}
	for _, c := range d.children {
		group.Go(func() error { return d.keep(ctx, c, up) })
	}
	group.Go(func() error {
		if err := d.await(ctx); err != nil {
			return err
		}
		close(up)
		return ready(ctx)
	})
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// startLimit is how long the fleet may take to come up before something must
// be wrong.
const startLimit = 20 * time.Second

// await returns when every worker has joined.
func (d *Dev) await(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	joined := 0
	err := d.changes.until(limited, func() bool {
		joined = 0
		for _, p := range d.gateway.Roster.Pools() {
			joined += len(p.Members)
		}
		return joined == d.cfg.Prefill+d.cfg.Decode
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("after %v only %d of %d workers have joined", startLimit, joined, d.cfg.Prefill+d.cfg.Decode)
	}
	return err
}

// Table writes what runs where.
func (d *Dev) Table() {
	d.row("WHAT", "WHERE", "PID")
	own := strconv.Itoa(os.Getpid())
	d.row("gateway", d.URL(), own)
	d.row("etcd", d.inner.EtcdURL(), own)
	d.row("nats", d.inner.NATSURL(), own)
	pids := map[string]string{}
	for _, c := range d.children {
		pids[c.id] = c.process().pid()
	}
	for _, p := range d.gateway.Roster.Pools() {
		for _, m := range p.Members {
			pid := own
			if !d.cfg.InProcess {
				pid = pids[m.Worker.ID]
			}
			d.row(m.Worker.ID, m.Worker.Address, pid)
		}
	}
}

// row writes one line of the table.
func (d *Dev) row(what, where, pid string) {
	fmt.Fprintf(d.cfg.Out, "  %-12s %-28s %s\n", what, where, pid)
}

// Close ends what Run does not, and which Run must have ended before: children
// first, then the servers they used.
func (d *Dev) Close() {
	for _, c := range d.children {
		_ = c.process().stdin.Close() // the child sees its parent gone
	}
	for _, c := range d.children {
		select {
		case <-c.process().done:
		case <-time.After(childLimit):
			_ = c.process().cmd.Process.Kill()
		}
	}
	if d.unlink != nil {
		d.unlink()
	}
	if d.inner != nil {
		d.inner.Close()
	}
}

// childLimit is how long a child may take to end after its input closed.
const childLimit = time.Second
