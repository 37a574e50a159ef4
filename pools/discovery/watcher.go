package discovery

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/pools"
)

// Sink receives the workers. A [pools.Source] is one. It logs refusals.
type Sink interface {
	// Put reports a worker that is new or has a new record.
	Put(w pools.Worker) error
	// Remove reports that a worker has left.
	Remove(id string)
	// Lose reports a configured worker that does not respond.
	Lose(w pools.Worker)
	// Resync reports all workers at once. Missing ones should go only if they do not return within grace.
	Resync(ws []pools.Worker, grace time.Duration)
	// Suspend reports that a worker may have ended, so that it should get no new requests, or that it has not.
	Suspend(id string, on bool)
	// Refuse reports a worker that cannot be used, and why.
	Refuse(w pools.Worker, reason error)
}

// WatcherConfig is how a [Watcher] works. The zero value of each field means its default.
type WatcherConfig struct {
	Prefix string // [DefaultPrefix]; a slash at its end is added
	// Allow are the hosts that records may name; nil allows every host. Every client that can write to etcd can write a record.
	Allow *Hosts
	// Grace is how long a worker that is missing after the watch broke may take to come back, by default 10 s. It
	// should be the workers' lease TTL.
	Grace time.Duration
}

// Watcher follows the registry in etcd. While etcd is unreachable it reports nothing, so the sink keeps its workers;
// afterwards it reports the full list.
type Watcher struct {
	prefixWatch
	sink Sink
	cfg  WatcherConfig
	log  *slog.Logger
	keys map[string]string // of each worker by id: the key that counts
	away atomic.Pointer[string]
}

// Away returns why etcd cannot be watched, empty while it is.
func (w *Watcher) Away() string {
	if why := w.away.Load(); why != nil {
		return *why
	}
	return ""
}

// NewWatcher returns a Watcher that reports to sink. client stays the caller's to close, after Run.
func NewWatcher(client *clientv3.Client, sink Sink, cfg WatcherConfig, log *slog.Logger) *Watcher {
	cfg.Prefix, cfg.Grace = folder(cfg.Prefix), cmp.Or(cfg.Grace, 10*time.Second)
	// A client whose link was cut takes its watch up again by itself, and is given every worker's removal where the cut
	// was longer than the leases. Etcd may end them two thirds of a TTL after the cut: a cut is noticed before that.
	watch := prefixWatch{newCalls(client, 2*time.Second), cfg.Prefix, min(5*time.Second, cfg.Grace/4), min(3*time.Second, cfg.Grace/4)}
	return &Watcher{prefixWatch: watch, sink: sink, cfg: cfg, log: log, keys: map[string]string{}}
}

// probation is how long a worker stays whose record expired without deregistration. An etcd that stood still ends all
// leases at once when it resumes, while the workers live and register again within seconds.
const probation = 3 * time.Second

// Run follows until ctx ends, when it returns nil. It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	w.persist(ctx, w.follow, func(err error) {
		w.away.Store(new(err.Error()))
		w.log.Warn("workers cannot be watched; keeping those known", "prefix", w.cfg.Prefix, "error", err)
	})
	return nil
}

// follow reports all workers, and then each change, until something is wrong.
func (w *Watcher) follow(ctx context.Context) error {
	// Right after an outage etcd may still end leases that the workers could not renew: as for those missing in the list,
	// it does not mean that the workers have left.
	var doubtful time.Time
	list := func(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
		header, err := w.list(ctx, w.cfg.Grace)
		if w.failed > 0 {
			doubtful = time.Now().Add(w.cfg.Grace)
		}
		return header, err
	}
	return w.prefixWatch.follow(ctx, list, func(ctx context.Context, events []*clientv3.Event) error {
		if w.failed > 0 {
			w.away.Store(nil)
			w.log.Info("workers are watched again", "prefix", w.cfg.Prefix)
			w.failed = 0
		}
		lost := 0
		for _, e := range events {
			guard.Do(w.log, "etcd", func() {
				if w.publish(e) {
					lost++
				}
			})
		}
		if lost == 0 {
			return nil
		}
		grace := min(probation, w.cfg.Grace)
		if time.Now().Before(doubtful) {
			grace = w.cfg.Grace
		}
		w.log.Warn("registrations expired without deregistration", "workers", lost, "kept_for", grace)
		_, err := w.list(ctx, grace) // has all these changes
		return err
	})
}

// list reports all workers to the sink; of those that it knew, missing ones go after grace.
func (w *Watcher) list(ctx context.Context, grace time.Duration) (*etcdserverpb.ResponseHeader, error) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	r, err := w.client.Get(ctx, w.cfg.Prefix, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend), clientv3.WithLimit(maxEndpoints))
	if err != nil {
		return nil, err
	}
	if r.More {
		w.log.Warn("too many worker records; the latest are ignored", "prefix", w.cfg.Prefix, "records", r.Count, "limit", maxEndpoints)
	}
	byID, refused := map[string]pools.Worker{}, map[string]refusal{}
	var order []string
	clear(w.keys)
	for _, kv := range r.Kvs {
		key := string(kv.Key)
		if len(kv.Value) == 0 {
			continue // it is leaving
		}
		worker, err := parseRecord(w.cfg.Prefix, key, kv.Value)
		if err != nil {
			w.skip(key, err)
			continue
		}
		if err := w.admit(&worker); err != nil {
			refused[worker.ID] = refusal{key, worker, err}
			continue
		}
		if _, twice := byID[worker.ID]; !twice {
			order = append(order, worker.ID)
		}
		byID[worker.ID], w.keys[worker.ID] = worker, key // of two keys for one id, the one written last
	}
	all := make([]pools.Worker, 0, len(order))
	for _, id := range order {
		all = append(all, byID[id])
	}
	w.sink.Resync(all, grace)
	for id, r := range refused {
		if w.keys[id] == "" { // else another record of that id is good
			w.keys[id] = r.key
			w.sink.Refuse(r.worker, r.err)
		}
	}
	return r.Header, nil
}

// publish reports one change to the sink, but that a worker's record went without its farewell: lost reports that.
func (w *Watcher) publish(e *clientv3.Event) (lost bool) {
	key := string(e.Kv.Key)
	if e.Type == clientv3.EventTypeDelete || len(e.Kv.Value) == 0 {
		// A worker that moved to another key (such as another role) has not left when its old key goes.
		id := idOf(w.cfg.Prefix, key)
		if id == "" || w.keys[id] != key {
			return false
		}
		if e.Type == clientv3.EventTypeDelete {
			return true
		}
		delete(w.keys, id)
		w.sink.Remove(id)
		return false
	}
	worker, err := parseRecord(w.cfg.Prefix, key, e.Kv.Value)
	if err != nil {
		w.skip(key, err)
		return false
	}
	if _, known := w.keys[worker.ID]; !known && len(w.keys) >= maxEndpoints {
		w.log.Debug("worker record skipped: too many records", "key", key, "limit", maxEndpoints)
		return false
	}
	if err := w.admit(&worker); err != nil {
		if held := w.keys[worker.ID]; held == "" || held == key {
			w.keys[worker.ID] = key
			w.sink.Refuse(worker, err)
		}
		return false
	}
	w.keys[worker.ID] = key
	if err := w.sink.Put(worker); err != nil {
		w.log.Debug("worker record not applied", "key", key, "error", err)
	}
	return false
}

// skip logs a record that is none. A key may be as long as etcd takes it; those of workers have less than 1 KiB.
func (w *Watcher) skip(key string, err error) {
	w.log.Warn("worker record skipped", "key", key[:min(len(key), 1<<10)], "error", err)
}
