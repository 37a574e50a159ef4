package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
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
	died     chan *child // gets every child that ends
	closing  atomic.Bool // children are expected to end
}

// child is a worker process. It ends when its standard input closes, so that
// it cannot outlive its parent however that ends.
type child struct {
	id    string
	role  pools.Role
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}
}

// StartDev starts everything but the workers. Close must be called whatever
// follows.
func StartDev(cfg DevConfig, log *slog.Logger, reg *prometheus.Registry) (_ *Dev, err error) {
	d := &Dev{cfg: cfg, log: log, died: make(chan *child, cfg.Prefill+cfg.Decode)}
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

func (d *Dev) startChildren() error {
	return d.workerIDs(func(role pools.Role, id string) error {
		args := append([]string{"worker", "--role", string(role), "--id", id, "--exit-with-stdin",
			"--etcd-endpoints", d.inner.EtcdURL()}, d.cfg.WorkerArgs...)
		if d.cfg.KVEvents {
			args = append(args, "--nats-url", d.inner.NATSURL())
			if d.cfg.Stream != nil {
				args = append(args, "--durable-kv-events")
			}
		}
		c := &child{id: id, role: role, cmd: exec.Command(d.cfg.Binary, args...), done: make(chan struct{})}
		c.cmd.Stderr = os.Stderr
		c.cmd.Env = environ(os.Environ())
		ownGroup(c.cmd)
		stdin, err := c.cmd.StdinPipe()
		if err != nil {
			return err
		}
		c.stdin = stdin
		if err := c.cmd.Start(); err != nil {
			return fmt.Errorf("worker %s: %w", id, err)
		}
		d.children = append(d.children, c)
		go d.watch(c)
		return nil
	})
}

// environ is the environment without settings: a child gets them as flags, and
// one that its parent understood may not be a worker's.
func environ(all []string) []string {
	var out []string
	for _, kv := range all {
		if !strings.HasPrefix(kv, "TANDEM_") && !strings.HasPrefix(kv, "DYN_") {
			out = append(out, kv)
		}
	}
	return out
}

// Gateway is the fleet's gateway.
func (d *Dev) Gateway() *Gateway { return d.gateway }

// URL is where clients reach the gateway.
func (d *Dev) URL() string { return "http://" + d.addr.String() }

// AdminURL is where administration is reached when it has an address of its
// own; empty when it has none.
func (d *Dev) AdminURL() string {
	if addr := d.gateway.AdminAddr(); addr != nil {
		return "http://" + addr.String()
	}
	return ""
}

// Workers are the in-process workers.
func (d *Dev) Workers() []*Worker { return d.inside }

// Run serves until ctx ends. ready is called once every worker has joined; its
// error, too, ends the run.
func (d *Dev) Run(ctx context.Context, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	joined := make(chan struct{}, 1)
	d.gateway.Roster.OnChange(func() {
		select {
		case joined <- struct{}{}:
		default:
		}
	})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.gateway.Run(ctx) })
	for _, w := range d.inside {
		group.Go(func() error { return w.Run(ctx) })
	}
	group.Go(func() error {
		if err := d.await(ctx, joined); err != nil {
			return err
		}
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
func (d *Dev) await(ctx context.Context, joined <-chan struct{}) error {
	late := time.NewTimer(startLimit)
	defer late.Stop()
	for {
		n := 0
		for _, p := range d.gateway.Roster.Pools() {
			n += len(p.Members)
		}
		if n == d.cfg.Prefill+d.cfg.Decode {
			return nil
		}
		select {
		case <-joined:
		case c := <-d.died:
			return fmt.Errorf("worker %s ended before the fleet was up: %v", c.id, c.cmd.ProcessState)
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fmt.Errorf("after %v only %d of %d workers have joined", startLimit, n, d.cfg.Prefill+d.cfg.Decode)
		}
	}
}

// watch says when a worker process has ended. It is not started again: dev is
// for seeing what happens.
func (d *Dev) watch(c *child) {
	err := c.cmd.Wait()
	if !d.closing.Load() {
		d.log.Warn("worker process ended", "worker", c.id, "pid", c.cmd.Process.Pid, "error", err)
	}
	close(c.done)
	d.died <- c
}

// Table writes what runs where.
func (d *Dev) Table(out io.Writer) {
	row := func(what, where, pid string) { fmt.Fprintf(out, "  %-12s %-28s %s\n", what, where, pid) }
	row("WHAT", "WHERE", "PID")
	own := strconv.Itoa(os.Getpid())
	row("gateway", d.URL(), own)
	row("etcd", d.inner.EtcdURL(), own)
	row("nats", d.inner.NATSURL(), own)
	pids := map[string]string{}
	for _, c := range d.children {
		pids[c.id] = strconv.Itoa(c.cmd.Process.Pid)
	}
	for _, p := range d.gateway.Roster.Pools() {
		for _, m := range p.Members {
			pid := own
			if !d.cfg.InProcess {
				pid = pids[m.Worker.ID]
			}
			row(m.Worker.ID, m.Worker.Address, pid)
		}
	}
}

// Close ends what Run does not: children first, then the servers they used.
func (d *Dev) Close() {
	d.closing.Store(true)
	for _, c := range d.children {
		_ = c.stdin.Close() // the child sees its parent gone
	}
	for _, c := range d.children {
		select {
		case <-c.done:
		case <-time.After(childLimit):
			_ = c.cmd.Process.Kill()
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
