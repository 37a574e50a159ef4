package devfleet

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/pools"
)

// child is a worker of the fleet that has a process of its own, and another one after it was killed.
type child struct {
	id   string
	role pools.Role
	now  atomic.Pointer[process]
}

// process is what runs a child, now or once. It ends when its standard input
// closes, so that it cannot outlive its parent however that ends.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed when it has ended
}

func (c *child) process() *process { return c.now.Load() }

func (p *process) pid() string { return strconv.Itoa(p.cmd.Process.Pid) }

func (f *Fleet) startChildren() error {
	return f.workerIDs(func(role pools.Role, id string) error {
		c := &child{id: id, role: role}
		if err := f.start(c); err != nil {
			return err
		}
		f.children = append(f.children, c)
		return nil
	})
}

// start starts a child's process.
func (f *Fleet) start(c *child) error {
	args := append([]string{"worker", "--role", string(c.role), "--id", c.id, "--exit-with-stdin",
		"--etcd-endpoints", f.inner.EtcdURL()}, f.cfg.WorkerArgs...)
	if f.cfg.KVEvents {
		args = append(args, "--nats-url", f.inner.NATSURL())
		if f.cfg.Stream != nil {
			args = append(args, "--durable-kv-events")
		}
	}
	p := &process{cmd: exec.Command(f.cfg.Binary, args...), done: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	p.cmd.Env = environ(os.Environ())
	ownGroup(p.cmd)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("worker %s: %w", c.id, err)
	}
	c.now.Store(p)
	go func() {
		_ = p.cmd.Wait() // ProcessState has the result
		close(p.done)
	}()
	return nil
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

// restart is how long a killed worker stays away: first long enough for people to
// see what the fleet does without it, longer after each life shorter than longLife.
var restart = guard.Backoff{Min: time.Second, Max: 30 * time.Second}

const longLife = 10 * time.Second

// keep watches over one child until ctx ends. A worker that was killed is down at once, and restarted if wanted; one
// that ended well, as on SIGTERM, has left. Before the fleet is up any end is an error.
func (f *Fleet) keep(ctx context.Context, c *child, up <-chan struct{}) error {
	var aside sync.WaitGroup
	defer aside.Wait()
	for deaths := 0; ; {
		p, began := c.process(), time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-p.done:
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil
		default:
			return fmt.Errorf("worker %s ended before the fleet was up: %v", c.id, p.cmd.ProcessState)
		}
		log := f.log.With("worker", c.id, "pid", p.pid())
		if p.cmd.ProcessState.Success() {
			log.Info("worker process exited; not restarted")
			return nil
		}
		dead, _ := f.gateway.Roster.Lookup(c.id)
		if dead.Worker != nil { // nil is one that had not registered
			f.gateway.Roster.ReportEnded(c.id, dead.Worker.Incarnation)
		}
		if !f.cfg.Restart {
			log.Warn("worker process failed; not restarted", "state", p.cmd.ProcessState.String())
			return nil
		}
		if time.Since(began) > longLife {
			deaths = 0
		}
		log.Warn("worker process failed; restarting", "state", p.cmd.ProcessState.String(), "delay", restart.Delay(deaths, nil))
		for started := false; !started; deaths++ {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(restart.Delay(deaths, nil)):
			}
			err := f.start(c)
			if started = err == nil; !started {
				f.log.Error("worker process not started", "worker", c.id, "error", err)
			}
		}
		aside.Go(func() { f.announce(ctx, c, dead.Worker) })
	}
}

// announce writes the table's new row of a child that was started again, once it
// has joined; nothing where it ends before.
func (f *Fleet) announce(ctx context.Context, c *child, dead *pools.Worker) {
	p := c.process()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	var joined pools.Member
	err := f.changes.until(ctx, func() bool {
		m, ok := f.gateway.Roster.Lookup(c.id)
		joined = m
		return ok && (dead == nil || m.Worker.Incarnation != dead.Incarnation)
	})
	if err == nil {
		f.row(c.id, joined.Worker.Address, p.pid())
	}
}

// changes wakes the goroutines that wait for a change of the roster.
type changes struct {
	mu   sync.Mutex // guards next
	next chan struct{}
}

// happened is called after each change.
func (c *changes) happened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.next)
	c.next = make(chan struct{})
}

// until returns when ok does, which is called after each change; its error is ctx's.
func (c *changes) until(ctx context.Context, ok func() bool) error {
	for {
		c.mu.Lock()
		next := c.next
		c.mu.Unlock()
		if ok() {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
