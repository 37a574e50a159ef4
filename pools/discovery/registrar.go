package discovery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/pools"
)

// RegistrarConfig is how a worker registers. Zero fields take the defaults.
type RegistrarConfig struct {
	// Prefix is where, by default [DefaultPrefix].
	Prefix string
	// TTL is the lease's, 1 s to 1 h in whole seconds, by default [DefaultTTL].
	TTL time.Duration
}

// Registrar keeps one worker registered.
type Registrar struct {
	client *clientv3.Client
	cfg    RegistrarConfig
	key    string
	record string
	worker string
	log    *slog.Logger
}

// NewRegistrar returns a registrar for a valid worker. The error is the
// config's or the record's.
func NewRegistrar(client *clientv3.Client, cfg RegistrarConfig, w pools.Worker, log *slog.Logger) (*Registrar, error) {
	cfg.Prefix, cfg.TTL = cmp.Or(cfg.Prefix, DefaultPrefix), cmp.Or(cfg.TTL, DefaultTTL)
	if err := errors.Join(checkTTL(cfg.TTL), w.Validate()); err != nil {
		return nil, err
	}
	record, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("worker %s: %w", w.ID, err)
	}
	return &Registrar{client: client, cfg: cfg, key: key(cfg.Prefix, &w), record: string(record), worker: w.ID, log: log}, nil
}

// Run registers the worker and keeps it registered until ctx ends; then it
// takes the registration back and returns nil. An etcd that is away, at the
// start or later, is waited for: the lease may have ended meanwhile, so a
// broken keep-alive always leads to a new lease and a new key.
func (r *Registrar) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		lease, err := r.register(ctx)
		if err != nil {
			failures++
			if failures == 1 && ctx.Err() == nil {
				r.log.Warn("registry not reached, trying on", "worker", r.worker, "error", err)
			}
			pause(ctx, backoff(failures))
			continue
		}
		if failures > 0 {
			r.log.Info("registered after a while", "worker", r.worker, "attempts", failures+1)
		}
		failures = 0
		r.keep(ctx, lease)
		if ctx.Err() != nil {
			r.deregister(lease)
			return nil
		}
		r.log.Warn("registration lost, registering again", "worker", r.worker)
	}
	return nil
}

// requestLimit bounds one call to etcd.
const requestLimit = 3 * time.Second

// register writes the key under a new lease.
func (r *Registrar) register(ctx context.Context) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	grant, err := r.client.Grant(ctx, int64(r.cfg.TTL/time.Second))
	if err != nil {
		return 0, err
	}
	_, err = r.client.Put(ctx, r.key, r.record, clientv3.WithLease(grant.ID))
	return grant.ID, err
}

// keep renews the lease until ctx ends or the lease cannot be renewed any more.
func (r *Registrar) keep(ctx context.Context, lease clientv3.LeaseID) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	alive, err := r.client.KeepAlive(ctx, lease)
	if err != nil {
		return
	}
	for range alive { // closed when the lease has ended, or ctx
	}
}

// deregister revokes the lease, which deletes the key with it.
func (r *Registrar) deregister(lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	if _, err := r.client.Revoke(ctx, lease); err != nil {
		r.log.Warn("not deregistered: the registration ends with its lease", "worker", r.worker, "error", err)
	}
}

// pause waits for d or ctx's end.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
