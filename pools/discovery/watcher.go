package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/pools"
)

// Sink takes which workers there are. A [pools.Source] is one. It logs what it turns away.
type Sink interface {
	// Put tells of a worker that is new or has a new record.
	Put(w pools.Worker) error
	// Remove tells that a worker has left.
	Remove(id string)
	// Resync tells of all workers at once. Those known before that are not among them should go only if they have
	// not come back within grace.
	Resync(ws []pools.Worker, grace time.Duration)
	// Refuse tells of a worker that cannot be taken, and why.
	Refuse(w pools.Worker, reason error)
}

// WatcherConfig is how a [Watcher] works. The zero value of each field means its default.
type WatcherConfig struct {
	Prefix string // [DefaultPrefix]
	// Allow are the hosts that records may name; nil allows every host. Whoever can write to etcd can write a record.
	Allow *Hosts
	// Grace is how long a worker that is missing after the watch broke may take to come back, by default 10 s. It
	// should be the workers' lease TTL.
	Grace time.Duration
	// ProbeEvery is how often it is made sure that etcd is there and still the same one, by default 5 s.
	ProbeEvery time.Duration
	// CallTimeout is how long etcd may take to answer one call, by default 3 s.
	CallTimeout time.Duration
	// RetryMin and RetryMax bound the time between attempts to reach etcd, by default 100 ms and 2 s.
	RetryMin, RetryMax time.Duration
	Seed               uint64 // of the attempts' jitter
}

// Validate names the first field that is out of range.
func (c *WatcherConfig) Validate() error {
	switch {
	case c.Grace < 0 || c.ProbeEvery < 0 || c.CallTimeout < 0 || c.RetryMin < 0 || c.RetryMax < 0:
		return errors.New("no duration may be negative")
	case c.RetryMax != 0 && c.RetryMax < c.RetryMin:
		return fmt.Errorf("retry max %v is below retry min %v", c.RetryMax, c.RetryMin)
	}
	return nil
}

// Watcher follows the registry in etcd. While etcd is away it says nothing, so that the sink goes on with the workers
// it knows; afterwards it says the full list.
type Watcher struct {
	client *clientv3.Client
	sink   Sink
	cfg    WatcherConfig
	log    *slog.Logger

	// Run's own.
	rng      *rand.Rand
	keys     map[string]string // of each worker by id: the key that counts
	attempts int               // to reach etcd in vain, one after another
}

// Why a watch is begun anew although etcd did not end it.
var (
	errClosed  = errors.New("the watch was closed")
	errAnother = errors.New("this is not the etcd that was followed before")
)

// NewWatcher returns a Watcher that tells sink. client stays the caller's to close, after Run. The error is the
// config's.
func NewWatcher(client *clientv3.Client, sink Sink, cfg WatcherConfig, log *slog.Logger) (*Watcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("watch workers: %w", err)
	}
	cfg.Prefix = cmp.Or(cfg.Prefix, DefaultPrefix)
	cfg.Grace = cmp.Or(cfg.Grace, 10*time.Second)
	cfg.ProbeEvery = cmp.Or(cfg.ProbeEvery, 5*time.Second)
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, 3*time.Second)
	cfg.RetryMin = cmp.Or(cfg.RetryMin, 100*time.Millisecond)
	cfg.RetryMax = max(cmp.Or(cfg.RetryMax, 2*time.Second), cfg.RetryMin)
	return &Watcher{
		client: client, sink: sink, cfg: cfg, log: log, rng: rand.New(rand.NewPCG(cfg.Seed, 0)), keys: map[string]string{},
	}, nil
}

// Run follows until ctx ends, when it returns nil. It may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if w.attempts == 0 {
			w.log.Warn("workers cannot be watched; going on with those known", "prefix", w.cfg.Prefix, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause(w.attempts, w.cfg.RetryMin, w.cfg.RetryMax, w.rng)):
		}
		w.attempts++
	}
}

// follow tells all workers, and then each change, until something is wrong.
func (w *Watcher) follow(ctx context.Context) error {
	// A watch whose server has lost its leader is to end, and so are the goroutines when this returns.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	listed, err := w.list(ctx)
	if err != nil {
		return err
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
			if w.attempts > 0 {
				w.log.Info("workers are watched again", "prefix", w.cfg.Prefix)
				w.attempts = 0
			}
			for _, e := range r.Events {
				w.tell(e)
			}
			latest.Store(max(latest.Load(), r.Header.Revision))
		}
	}
}

// list tells the sink all workers there are.
func (w *Watcher) list(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
	defer cancel()
	r, err := w.client.Get(ctx, w.cfg.Prefix, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend), clientv3.WithLimit(MaxEndpoints))
	if err != nil {
		return nil, err
	}
	if r.More {
		w.log.Warn("there are more worker records than are looked at: the latest are left out", "prefix", w.cfg.Prefix, "records", r.Count, "limit", MaxEndpoints)
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

// tell tells the sink one change.
func (w *Watcher) tell(e *clientv3.Event) {
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
	if _, known := w.keys[worker.ID]; !known && len(w.keys) >= MaxEndpoints {
		w.log.Debug("worker record skipped: there are as many as are looked at", "key", key, "limit", MaxEndpoints)
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
// that listed is of. A connection that goes silent, or an etcd that begins anew with an empty or an older data
// directory, breaks no watch: it would wait for what never comes, the second for the old revision to come round.
func (w *Watcher) probe(ctx context.Context, listed *etcdserverpb.ResponseHeader, latest *atomic.Int64) error {
	tick := time.NewTicker(w.cfg.ProbeEvery)
	defer tick.Stop()
	term := listed.RaftTerm
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		heard := latest.Load()
		h, err := w.ask(ctx)
		if err != nil {
			return fmt.Errorf("etcd does not answer: %w", err)
		}
		if h.ClusterId != listed.ClusterId || h.RaftTerm < term || h.Revision < heard {
			return errAnother
		}
		term = h.RaftTerm
	}
}

func (w *Watcher) ask(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
	defer cancel()
	r, err := w.client.Get(ctx, w.cfg.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return nil, err
	}
	return r.Header, nil
}
