package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/pools"
)

// RegistrarConfig is how a [Registrar] works. The zero value of each field means its default.
type RegistrarConfig struct {
	Prefix string // [DefaultPrefix]
	// TTL is how long the record outlives the process, by default 10 s; whole seconds, at least 1.
	TTL time.Duration
	// CallTimeout is how long etcd may take to answer one call, by default 3 s.
	CallTimeout time.Duration
	// RetryMin and RetryMax bound the time between attempts to register, by default 100 ms and a fifth of TTL: well
	// under TTL, so that after a restart of etcd the worker is back before its old lease ends.
	RetryMin, RetryMax time.Duration
	Seed               uint64 // of the attempts' jitter
}

// Validate names the first field that is out of range.
func (c *RegistrarConfig) Validate() error {
	switch {
	case c.TTL != 0 && (c.TTL < time.Second || c.TTL%time.Second != 0):
		return fmt.Errorf("TTL %v: must be whole seconds, at least 1", c.TTL)
	case c.CallTimeout < 0 || c.RetryMin < 0 || c.RetryMax < 0:
		return errors.New("call timeout and retry times must not be negative")
	case c.RetryMax != 0 && c.RetryMax < c.RetryMin:
		return fmt.Errorf("retry max %v is below retry min %v", c.RetryMax, c.RetryMin)
	}
	return nil
}

// Registrar keeps one worker registered in etcd for as long as the process lives.
type Registrar struct {
	client     *clientv3.Client
	key, value string
	cfg        RegistrarConfig
	log        *slog.Logger
	rng        *rand.Rand // Run's
	registered chan struct{}
	held       atomic.Bool

	mu     sync.Mutex // guards all below
	lease  clientv3.LeaseID
	cancel context.CancelFunc // of Run; nil before it
	done   chan struct{}      // closed when Run has ended; nil before it
	left   bool               // Deregister was called
	once   bool               // registered is closed
}

// NewRegistrar returns a Registrar of w. client stays the caller's to close, after Run. The error is that the record
// or the config is invalid.
func NewRegistrar(client *clientv3.Client, w pools.Worker, cfg RegistrarConfig, log *slog.Logger) (*Registrar, error) {
	if err := w.Validate(); err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("register worker %q: %w", w.ID, err)
	}
	value, err := json.Marshal(&w)
	if err != nil {
		return nil, fmt.Errorf("register worker %q: %w", w.ID, err)
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, DefaultPrefix)
	cfg.TTL = cmp.Or(cfg.TTL, 10*time.Second)
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, 3*time.Second)
	cfg.RetryMin = cmp.Or(cfg.RetryMin, 100*time.Millisecond)
	cfg.RetryMax = max(cmp.Or(cfg.RetryMax, cfg.TTL/5), cfg.RetryMin)
	return &Registrar{
		client: client, key: Key(cfg.Prefix, &w), value: string(value), cfg: cfg, log: log.With("worker", w.ID),
		rng: rand.New(rand.NewPCG(cfg.Seed, 0)), registered: make(chan struct{}),
	}, nil
}

// Run registers the worker and keeps it registered, again and again for as long as it takes, until ctx ends or
// Deregister is called; then it returns nil. It may be called once. When ctx ends, the record stays until its lease
// does, as it would after a crash: a worker that stops well calls Deregister.
func (r *Registrar) Run(ctx context.Context) error {
	ctx, done := r.begin(ctx)
	if done == nil {
		return nil
	}
	defer close(done)
	for attempts := 0; ; {
		alive, err := r.register(ctx)
		if err == nil {
			attempts = 0
			r.log.Info("worker registered", "key", r.key)
			if err = untilLost(ctx, alive); err == nil {
				return nil
			}
			r.held.Store(false)
		}
		if ctx.Err() != nil {
			return nil
		}
		if attempts == 0 {
			r.log.Warn("worker is not registered; trying until it is", "key", r.key, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause(attempts, r.cfg.RetryMin, r.cfg.RetryMax, r.rng)):
		}
		attempts++
	}
}

// Registered is closed once the worker has been registered for the first time.
func (r *Registrar) Registered() <-chan struct{} { return r.registered }

// Held reports whether the record is in etcd now, as far as is known: a lease that cannot be renewed is known to be lost when
// it would have ended.
func (r *Registrar) Held() bool { return r.held.Load() }

// Lodged reports whether the record may be in etcd, and watchers may have seen it: it has been put since the last Deregister,
// or is being put now, which Held does not know yet.
func (r *Registrar) Lodged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease != clientv3.NoLease
}

// Deregister ends Run and takes the record out of etcd, so that watchers see the worker leave at once. A record that
// another process has put in its place meanwhile stays. Its error is that etcd did not do so before ctx ended; then
// the lease does.
func (r *Registrar) Deregister(ctx context.Context) error {
	r.mu.Lock()
	r.left = true
	cancel, done := r.cancel, r.done
	r.mu.Unlock()
	if done != nil {
		cancel()
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("deregister %s: %w", r.key, context.Cause(ctx))
		}
	}
	r.mu.Lock()
	lease := r.lease
	r.lease = clientv3.NoLease
	r.held.Store(false)
	r.mu.Unlock()
	if lease == clientv3.NoLease {
		return nil
	}
	// The end of a lease deletes the keys that hang on it, and no others.
	if _, err := r.client.Revoke(ctx, lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("deregister %s: %w", r.key, err)
	}
	r.log.Info("worker deregistered", "key", r.key)
	return nil
}

var errLeaseLost = errors.New("the lease was lost")

// untilLost waits for the end of alive: etcd has said, or its silence has, that the lease is over. It gives nil when
// ctx ended first. (The channel alone does not do: a client that is closed at the wrong moment leaves it open.)
func untilLost(ctx context.Context, alive <-chan *clientv3.LeaseKeepAliveResponse) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-alive:
			if !ok {
				return errLeaseLost
			}
		}
	}
}

// begin notes that Run has begun; done is nil when it must not.
func (r *Registrar) begin(ctx context.Context) (context.Context, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		return nil, nil
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.done = make(chan struct{})
	return ctx, r.done
}

// register puts the record under a new lease. The channel tells of each renewal and is closed when the lease is over.
func (r *Registrar) register(ctx context.Context) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	callCtx, cancel := context.WithTimeout(ctx, r.cfg.CallTimeout)
	defer cancel()
	grant, err := r.client.Grant(callCtx, int64(r.cfg.TTL/time.Second))
	if err != nil {
		return nil, fmt.Errorf("grant a lease: %w", err)
	}
	r.mu.Lock()
	r.lease = grant.ID
	r.mu.Unlock()
	if _, err := r.client.Put(callCtx, r.key, r.value, clientv3.WithLease(grant.ID)); err != nil {
		return nil, fmt.Errorf("put the record: %w", err)
	}
	alive, err := r.client.KeepAlive(ctx, grant.ID)
	if err != nil {
		return nil, fmt.Errorf("keep the lease alive: %w", err)
	}
	r.held.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.once {
		r.once = true
		close(r.registered)
	}
	return alive, nil
}
