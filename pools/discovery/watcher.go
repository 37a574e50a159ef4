package discovery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/pools"
)

// Sink is told who the workers are. *pools.Roster is one.
type Sink interface {
	// Put takes a worker in, or its new record.
	Put(w pools.Worker) error
	// Remove takes a worker out: it deregistered, or its lease ended.
	Remove(id string)
	// Resync takes the whole list after the watch broke. Workers that it lacks
	// go only after grace, unless they come back.
	Resync(ws []pools.Worker, grace time.Duration)
}

// WatcherConfig is what a gateway follows. Zero fields take the defaults.
type WatcherConfig struct {
	// Prefix is where workers register, by default [DefaultPrefix].
	Prefix string
	// TTL is the workers' lease, by default [DefaultTTL]: as long, a worker that
	// is missing after etcd was away may take to register again.
	TTL time.Duration
}

// Watcher follows the registry.
type Watcher struct {
	client *clientv3.Client
	cfg    WatcherConfig
	sink   Sink
	log    *slog.Logger
}

// NewWatcher returns a watcher. The error is the config's.
func NewWatcher(client *clientv3.Client, cfg WatcherConfig, sink Sink, log *slog.Logger) (*Watcher, error) {
	cfg.Prefix, cfg.TTL = cmp.Or(cfg.Prefix, DefaultPrefix), cmp.Or(cfg.TTL, DefaultTTL)
	if err := checkTTL(cfg.TTL); err != nil {
		return nil, err
	}
	cfg.Prefix = strings.TrimSuffix(cfg.Prefix, "/") + "/"
	return &Watcher{client: client, cfg: cfg, sink: sink, log: log}, nil
}

// Run tells the sink until ctx ends, and returns nil. While etcd is away it
// tells nothing, so that the last known workers stay; once it is back, the
// whole list is read again.
func (w *Watcher) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		revision, err := w.list(ctx)
		if err == nil {
			if failures > 0 {
				w.log.Info("registry is back")
			}
			failures = 0
			err = w.follow(ctx, revision)
		}
		if ctx.Err() != nil {
			return nil
		}
		failures++
		if failures == 1 {
			w.log.Warn("registry away, keeping the workers last known", "error", err)
		}
		pause(ctx, backoff(failures))
	}
	return nil
}

// list reads all registrations and hands them over.
func (w *Watcher) list(ctx context.Context) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	answer, err := w.client.Get(ctx, w.cfg.Prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	workers := make([]pools.Worker, 0, len(answer.Kvs))
	for _, kv := range answer.Kvs {
		if worker, ok := w.parse(kv.Key, kv.Value); ok {
			workers = append(workers, worker)
		}
	}
	w.sink.Resync(workers, w.cfg.TTL)
	return answer.Header.Revision, nil
}

// errWatchEnded says that etcd closed the watch without a reason.
var errWatchEnded = errors.New("watch ended")

// follow hands every change over until the watch breaks. A watch that has lost
// its leader is one that hears nothing, so it is asked to break.
func (w *Watcher) follow(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := w.client.Watch(ctx, w.cfg.Prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	for batch := range changes {
		if err := batch.Err(); err != nil {
			return err
		}
		for _, e := range batch.Events {
			switch e.Type {
			case clientv3.EventTypePut:
				if worker, ok := w.parse(e.Kv.Key, e.Kv.Value); ok {
					_ = w.sink.Put(worker) // the sink says why it refuses one
				}
			case clientv3.EventTypeDelete:
				w.sink.Remove(idOf(string(e.Kv.Key)))
			}
		}
	}
	return errWatchEnded
}

// parse reads a registration. A bad one is named and skipped: it must not cost
// the others.
func (w *Watcher) parse(key, value []byte) (pools.Worker, bool) {
	worker, err := pools.ParseWorker(value)
	if err == nil && worker.ID != idOf(string(key)) {
		err = errors.New("the record's id is not the key's")
	}
	if err != nil {
		w.log.Warn("registration skipped", "key", string(key), "error", err)
	}
	return worker, err == nil
}
