package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/pools"
)

// Registrar keeps one worker registered in etcd for as long as the process lives.
type Registrar struct {
	calls
	key, value string
	ttl        time.Duration
	log        *slog.Logger
	registered chan struct{}
	first      sync.Once // closes registered
	held       atomic.Bool

	mu     sync.Mutex // guards all below
	lease  clientv3.LeaseID
	cancel context.CancelFunc // of Run; nil before it
	done   chan struct{}      // closed when Run has ended; nil before it
	left   bool               // Deregister was called
}

// NewRegistrar returns a Registrar of w under a prefix, [DefaultPrefix] where it is empty. ttl is how long the record
// outlives the process: whole seconds, 10 s where it is zero. client stays the caller's to close, after Run.
func NewRegistrar(client *clientv3.Client, w pools.Worker, prefix string, ttl time.Duration, log *slog.Logger) (*Registrar, error) {
	if err := w.Validate(); err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	if ttl < 0 || ttl%time.Second != 0 {
		return nil, fmt.Errorf("register worker %q: TTL %v: must be whole seconds, at least 1", w.ID, ttl)
	}
	value, err := json.Marshal(&w)
	if err != nil {
		return nil, fmt.Errorf("register worker %q: %w", w.ID, err)
	}
	ttl = cmp.Or(ttl, 10*time.Second)
	return &Registrar{
		// After a restart of etcd the worker has to be back before its old lease ends.
		calls: newCalls(client, ttl/5), key: Key(folder(prefix), &w), value: string(value), ttl: ttl,
		log: log.With("worker", w.ID), registered: make(chan struct{}),
	}, nil
}

// Run registers the worker and keeps it registered, for as long as it takes, until ctx ends or Deregister is called;
// then it returns nil. It may be called once. When ctx ends, the record stays until its lease does, as it would after
// a crash: a worker that stops well calls Deregister.
func (r *Registrar) Run(ctx context.Context) error {
	ctx, done := r.begin(ctx)
	if done == nil {
		return nil
	}
	defer close(done)
	r.persist(ctx, func(ctx context.Context) error {
		alive, err := r.register(ctx)
		if err != nil {
			return err
		}
		r.failed = 0
		r.log.Info("worker registered", "key", r.key)
		if err = untilLost(ctx, alive); err != nil {
			r.held.Store(false)
		}
		return err
	}, func(err error) {
		r.log.Warn("worker registration failed; retrying", "key", r.key, "error", err)
	})
	return nil
}

// Registered is closed once the worker has been registered for the first time.
func (r *Registrar) Registered() <-chan struct{} { return r.registered }

// Held reports whether the record is in etcd now, by the last renewal: an unrenewed lease counts as lost when it would
// have ended.
func (r *Registrar) Held() bool { return r.held.Load() }

// Lodged reports whether the record may be in etcd, and watchers may have seen it: it has been put since the last Deregister,
// or is being put now, which Held does not know yet.
func (r *Registrar) Lodged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease != clientv3.NoLease
}

// Deregister ends Run and takes the record out of etcd, so that watchers see the worker leave at once. A record that
// another process has put in its place meanwhile stays. Its error is that etcd did not do so before ctx ended, or
// within a few seconds; then the lease does.
func (r *Registrar) Deregister(ctx context.Context) error {
	r.mu.Lock()
	r.left = true
	end, done := r.cancel, r.done
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.timeout) // an etcd that has gone is not waited for
	defer cancel()
	if done != nil {
		end()
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
	// An empty record is the farewell: without it, watchers take the end of the record for that of a lease that etcd let lapse.
	ours := clientv3.Compare(clientv3.LeaseValue(r.key), "=", lease)
	if _, err := r.client.Txn(ctx).If(ours).Then(clientv3.OpPut(r.key, "", clientv3.WithLease(lease))).Commit(); err != nil {
		return fmt.Errorf("deregister %s: %w", r.key, err)
	}
	// The end of a lease deletes the keys that hang on it, and no others.
	if _, err := r.client.Revoke(ctx, lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("deregister %s: %w", r.key, err)
	}
	r.log.Info("worker deregistered", "key", r.key)
	return nil
}

var errLeaseLost = errors.New("the lease was lost")

// untilLost waits for the end of the lease, by alive or by time. It returns nil when ctx ends first. (A client closed
// at the wrong moment leaves the channel open.)
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

// register puts the record under a new lease. The channel gets each renewal and is closed when the lease is over.
func (r *Registrar) register(ctx context.Context) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	callCtx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	grant, err := r.client.Grant(callCtx, int64(r.ttl/time.Second))
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
	r.first.Do(func() { close(r.registered) })
	return alive, nil
}
