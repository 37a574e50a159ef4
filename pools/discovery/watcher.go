package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/pools"
)

// Sink takes which workers there are. A [pools.Source] is one. It logs what it turns away.
type Sink interface {
	// Put reports a worker that is new or has a new record.
	Put(w pools.Worker) error
	// Remove reports that a worker has left.
	Remove(id string)
	// Resync reports all workers at once. Those known before that are not among them should go only if they have
	// not come back within grace.
	Resync(ws []pools.Worker, grace time.Duration)
	// Refuse reports a worker that cannot be taken, and why.
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

// Watcher follows the registry in etcd. While etcd is away it says nothing, so that the sink goes on with the workers
// it knows; afterwards it says the full list.
type Watcher struct {
	calls
	sink       Sink
	cfg        WatcherConfig
	log        *slog.Logger
	probeEvery time.Duration     // between two questions whether etcd is there and still the same one
	probeLimit time.Duration     // of one such question
	keys       map[string]string // of each worker by id: the key that counts
}

// Why a watch is begun again although etcd did not end it.
var (
	errClosed  = errors.New("the watch was closed")
	errAnother = errors.New("this is not the etcd that was followed before")
)

// NewWatcher returns a Watcher that reports to sink. client stays the caller's to close, after Run.
func NewWatcher(client *clientv3.Client, sink Sink, cfg WatcherConfig, log *slog.Logger) *Watcher {
	cfg.Prefix, cfg.Grace = folder(cfg.Prefix), cmp.Or(cfg.Grace, 10*time.Second)
	return &Watcher{
		calls: newCalls(client, 2*time.Second), sink: sink, cfg: cfg, log: log, keys: map[string]string{},
		// A client whose link was cut takes its watch up again by itself, and is given every worker's removal where the cut
		// was longer than the leases. Etcd may end them two thirds of a TTL after the cut: a cut is noticed before that.
		probeEvery: min(5*time.Second, cfg.Grace/4), probeLimit: min(3*time.Second, cfg.Grace/4),
	}
}

// Run follows until ctx ends, when it returns nil. It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	w.persist(ctx, w.follow, func(err error) {
		w.log.Warn("workers cannot be watched; going on with those known", "prefix", w.cfg.Prefix, "error", err)
	})
	return nil
}

// follow reports all workers, and then each change, until something is wrong.
func (w *Watcher) follow(ctx context.Context) error {
	// A watch whose server has lost its leader is to end, and so are the goroutines when this returns.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	listed, err := w.list(ctx)
	if err != nil {
		return err
	}
	// Right after an outage etcd may still end leases that the workers could not renew: as for those missing in the list,
	// it does not mean that the workers have left.
	var doubtful time.Time
	if w.failed > 0 {
		doubtful = time.Now().Add(w.cfg.Grace)
	}
	var latest atomic.Int64 // the revision that was heard of last
	latest.Store(listed.Revision)
	failed := make(chan error, 1)
	var probing sync.WaitGroup
	defer probing.Wait()
	defer cancel()
	probing.Go(func() {
		failed <- w.probe(ctx, listed, &latest)
		cancel() // Watch itself may be waiting for an answer
	})

	events := w.client.Watch(ctx, w.cfg.Prefix, clientv3.WithPrefix(), clientv3.WithRev(listed.Revision+1),
		clientv3.WithCreatedNotify(), clientv3.WithProgressNotify())
	for {
		select {
		case err := <-failed:
			return err
		case r, ok := <-events:
			switch err := r.Err(); {
			case ctx.Err() != nil: // the probe ended it, or the caller did
				return <-failed
			case !ok:
				return errClosed
			case err != nil:
				return err
			}
			if w.failed > 0 {
				w.log.Info("workers are watched again", "prefix", w.cfg.Prefix)
				w.failed = 0
			}
			removed := slices.ContainsFunc(r.Events, func(e *clientv3.Event) bool { return e.Type == clientv3.EventTypeDelete })
			if removed && time.Now().Before(doubtful) {
				if _, err := w.list(ctx); err != nil { // has all these changes
					return err
				}
			} else {
				for _, e := range r.Events {
					w.publish(e)
				}
			}
			latest.Store(max(latest.Load(), r.Header.Revision))
		}
	}
}

// list reports all workers to the sink.
func (w *Watcher) list(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	r, err := w.client.Get(ctx, w.cfg.Prefix, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend), clientv3.WithLimit(maxEndpoints))
	if err != nil {
		return nil, err
	}
	if r.More {
		w.log.Warn("there are more worker records than are looked at: the latest are left out", "prefix", w.cfg.Prefix, "records", r.Count, "limit", maxEndpoints)
	}
	byID, refused := map[string]pools.Worker{}, map[string]refusal{}
	var order []string
	clear(w.keys)
	for _, kv := range r.Kvs {
		key := string(kv.Key)
		worker, err := parseRecord(w.cfg.Prefix, key, kv.Value)
		if err != nil {
			w.log.Warn("worker record skipped", "key", key, "error", err)
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
	w.sink.Resync(all, w.cfg.Grace)
	for id, r := range refused {
		if w.keys[id] == "" { // else another record of that id is good
			w.keys[id] = r.key
			w.sink.Refuse(r.worker, r.err)
		}
	}
	return r.Header, nil
}

// publish reports one change to the sink.
func (w *Watcher) publish(e *clientv3.Event) {
	key := string(e.Kv.Key)
	if e.Type == clientv3.EventTypeDelete {
		// A worker that moved to another key (with another role, say) has not left when its old key goes.
		if id := idOf(w.cfg.Prefix, key); id != "" && w.keys[id] == key {
			delete(w.keys, id)
			w.sink.Remove(id)
		}
		return
	}
	worker, err := parseRecord(w.cfg.Prefix, key, e.Kv.Value)
	if err != nil {
		w.log.Warn("worker record skipped", "key", key, "error", err)
		return
	}
	if _, known := w.keys[worker.ID]; !known && len(w.keys) >= maxEndpoints {
		w.log.Debug("worker record skipped: there are as many as are looked at", "key", key, "limit", maxEndpoints)
		return
	}
	if err := w.admit(&worker); err != nil {
		if held := w.keys[worker.ID]; held == "" || held == key {
			w.keys[worker.ID] = key
			w.sink.Refuse(worker, err)
		}
		return
	}
	w.keys[worker.ID] = key
	if err := w.sink.Put(worker); err != nil {
		w.log.Debug("worker record not taken", "key", key, "error", err)
	}
}

// probe asks etcd for something small now and then, until ctx ends, etcd does not answer, or it is another one than
// that listed is of. A connection that goes silent, or an etcd that starts again with an empty or an older data
// directory, breaks no watch: it would wait for what never comes, the second for the old revision to come round.
func (w *Watcher) probe(ctx context.Context, listed *etcdserverpb.ResponseHeader, latest *atomic.Int64) error {
	tick := time.NewTicker(w.probeEvery)
	defer tick.Stop()
	term := listed.RaftTerm
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		heard := latest.Load()
		r, err := w.ask(ctx)
		if err != nil {
			return fmt.Errorf("etcd does not answer: %w", err)
		}
		if h := r.Header; h.ClusterId != listed.ClusterId || h.RaftTerm < term || h.Revision < heard {
			return errAnother
		}
		term = r.Header.RaftTerm
	}
}

func (w *Watcher) ask(ctx context.Context) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, w.probeLimit)
	defer cancel()
	return w.client.Get(ctx, w.cfg.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
}
