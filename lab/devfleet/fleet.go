package devfleet

import (
	"cmp"
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

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/pools"
)

// Config describes the fleet of `gateway dev`.
type Config struct {
	Gateway stack.GatewayConfig
	// Prefill and Decode are the numbers of workers.
	Prefill, Decode int
	// Worker is the workers' common part; role and id are filled in.
	Worker WorkerConfig
	// InProcess runs the workers in this process instead of as children.
	InProcess bool
	// KVEvents: workers publish and the gateway follows.
	KVEvents bool
	// Stream keeps the KV events; nil for not so.
	Stream *natsbus.StreamConfig
	// Binary is the workers' program, and WorkerArgs further arguments of its worker command.
	Binary     string
	WorkerArgs []string
	// Restart starts a worker process again that was killed.
	Restart bool
	// Out receives the table of addresses, and a row for each restarted worker.
	Out io.Writer
}

// Fleet is a gateway with simulated workers on one machine, and the embedded NATS and etcd that connect them.
type Fleet struct {
	cfg      Config
	log      *slog.Logger
	inner    *stack.Embedded
	unlink   func()
	gateway  *stack.Gateway
	addr     net.Addr
	children []*child
	inside   []*Worker
	changes  changes // of the roster
}

// Start starts everything but the workers. The caller must call Close, also after an error of Run.
func Start(cfg Config, log *slog.Logger, reg *prometheus.Registry) (_ *Fleet, err error) {
	f := &Fleet{cfg: cfg, log: log, changes: changes{next: make(chan struct{})}}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if f.inner, err = stack.Embed(stack.EmbedConfig{JetStream: cfg.Stream != nil}); err != nil {
		return nil, err
	}
	natsURL := ""
	if cfg.KVEvents {
		natsURL = f.inner.NATSURL()
	}
	links, unlink, err := stack.Connect(&stack.Discovery{EtcdEndpoints: []string{f.inner.EtcdURL()}, NATSURL: natsURL}, cfg.Stream,
		log, nats.Name("tandem dev"))
	if err != nil {
		return nil, err
	}
	f.unlink = unlink
	if f.gateway, err = stack.NewGateway(cfg.Gateway, links, log, reg); err != nil {
		return nil, err
	}
	f.gateway.Roster.OnChange(f.changes.happened)
	if f.addr, err = f.gateway.Listen(); err != nil {
		return nil, err
	}
	if cfg.InProcess {
		return f, f.makeWorkers(links)
	}
	return f, f.startChildren()
}

// workerIDs lists the fleet's workers in the order of the table.
func (f *Fleet) workerIDs(each func(role pools.Role, id string) error) error {
	for role, n := range map[pools.Role]int{pools.Prefill: f.cfg.Prefill, pools.Decode: f.cfg.Decode} {
		for i := range n {
			if err := each(role, fmt.Sprintf("%s-%d", role, i+1)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Fleet) makeWorkers(links stack.Links) error {
	return f.workerIDs(func(role pools.Role, id string) error {
		cfg := f.cfg.Worker
		cfg.Engine.Role, cfg.Engine.ID = string(role), id
		w, err := NewWorker(cfg, links, f.log)
		if err == nil {
			f.inside = append(f.inside, w)
		}
		return err
	})
}

// Inside are the embedded servers.
func (f *Fleet) Inside() *stack.Embedded { return f.inner }

// URL is where clients on this machine reach the gateway.
func (f *Fleet) URL() string { return f.scheme() + stack.LocalAddr(f.addr) }

func (f *Fleet) scheme() string {
	if f.cfg.Gateway.Edge.TLS.CertFile != "" {
		return "https://"
	}
	return "http://"
}

// adminURL is where administration is reached when it has an address of its own; empty when it has none.
func (f *Fleet) adminURL() string {
	if addr := f.gateway.AdminAddr(); addr != nil {
		return f.scheme() + stack.LocalAddr(addr)
	}
	return ""
}

// Run serves until ctx ends. ready is called once every worker has joined; its error, too, ends the run.
func (f *Fleet) Run(ctx context.Context, ready func(ctx context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	up := make(chan struct{})
	group.Go(func() error { return f.gateway.Run(ctx) })
	for _, w := range f.inside {
		group.Go(func() error { return w.Run(ctx) })
	}
	for _, c := range f.children {
		group.Go(func() error { return f.keep(ctx, c, up) })
	}
	group.Go(func() error {
		if err := f.await(ctx); err != nil {
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

// startLimit is how long the fleet may take to come up before something must be wrong.
const startLimit = 20 * time.Second

// await returns when every worker has joined and requests are accepted.
func (f *Fleet) await(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	joined := 0
	err := f.changes.until(limited, func() bool {
		joined = 0
		for _, p := range f.gateway.Roster.Pools() {
			joined += len(p.Members)
		}
		return joined == f.cfg.Prefill+f.cfg.Decode
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("after %v only %d of %d workers have joined", startLimit, joined, f.cfg.Prefill+f.cfg.Decode)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for err == nil && limited.Err() == nil && f.gateway.Awaits() != "" { // it has yet to read what operators have changed
		select {
		case <-tick.C:
		case <-limited.Done():
		}
	}
	return cmp.Or(err, ctx.Err())
}

// table writes the addresses.
func (f *Fleet) table() {
	f.row("WHAT", "WHERE", "PID")
	own := strconv.Itoa(os.Getpid())
	f.row("gateway", f.URL(), own)
	f.row("etcd", f.inner.EtcdURL(), own)
	f.row("nats", f.inner.NATSURL(), own)
	pids := map[string]string{}
	for _, c := range f.children {
		pids[c.id] = c.process().pid()
	}
	for _, p := range f.gateway.Roster.Pools() {
		for _, m := range p.Members {
			pid := own
			if !f.cfg.InProcess {
				pid = pids[m.Worker.ID]
			}
			f.row(m.Worker.ID, m.Worker.Address, pid)
		}
	}
}

// row writes one line of the table.
func (f *Fleet) row(what, where, pid string) {
	fmt.Fprintf(f.cfg.Out, "  %-12s %-28s %s\n", what, where, pid)
}

// Close ends what Run does not, and which Run must have ended before: children first, then the servers they used.
func (f *Fleet) Close() {
	for _, c := range f.children {
		_ = c.process().stdin.Close() // the child sees its parent gone
	}
	for _, c := range f.children {
		select {
		case <-c.process().done:
		case <-time.After(childLimit):
			_ = c.process().cmd.Process.Kill()
		}
	}
	if f.unlink != nil {
		f.unlink()
	}
	if f.inner != nil {
		f.inner.Close()
	}
}

// childLimit is how long a child may take to end after its input closed.
const childLimit = time.Second
