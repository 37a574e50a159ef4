package service

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/index"
)

// maxModels bounds the models that were ever registered at one index.
const maxModels = 1024

// shared is the index that several routers share. Workers are registered by
// HTTP; their events come over NATS, or are posted.
type shared struct {
	log        *slog.Logger
	subscriber *events.Subscriber // nil without a bus

	mu      sync.RWMutex // guards what follows
	models  map[string]*indexed
	workers map[string]*registered
}

// indexed is one model's blocks. Those that NATS tells of and those that are
// posted are kept apart, because the subscriber drops workers in its own time.
type indexed struct {
	published, posted *index.Index
	workers           int
	blockSize         int // tokens; of its workers, 0 without any
}

// Registration is a worker of a shared index.
type Registration struct {
	ID    string `json:"id"`
	Model string `json:"model"`
	// Role is the worker's pool's; empty means both. With NATS it must be what the worker publishes under.
	Role pools.Role `json:"role"`
	// BlockSize is in tokens, the same for all workers of a model, 1 to [pools.MaxBlockSize].
	BlockSize int `json:"block_size"`
	// Ranks is the number of data-parallel ranks, 0 meaning 1.
	Ranks int `json:"data_parallel_ranks"`
	// KVEvents is "nats" or "post"; empty means post.
	KVEvents string `json:"kv_events"`
}

// registered is a Registration at work.
type registered struct {
	Registration
	idx   *index.Index
	ranks []*posted // of one whose events are posted
}

// posted is a rank whose events are posted.
type posted struct {
	limit  int        // blocks
	mu     sync.Mutex // guards what follows
	view   *events.View
	record *events.Record
}

// NewIndex returns the service of `gateway index`. bus may be nil: events are
// posted then. metrics answers /metrics.
func NewIndex(cfg Config, follow events.SubscriberConfig, bus events.Bus, metrics http.Handler, log *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	x := &shared{log: log, models: map[string]*indexed{}, workers: map[string]*registered{}}
	if bus != nil {
		var err error
		if x.subscriber, err = events.NewSubscriber(follow, bus, x.indexFor, log, reg); err != nil {
			return nil, err
		}
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "service_index_held_blocks", Help: "Pairs of block and worker's rank in the shared index, each tier counted for itself.",
	}, x.held))
	return newServer(cfg, x, metrics, log, reg), nil
}

func (x *shared) name() string { return "index" }

func (x *shared) routes(s *Server) {
	s.handle("POST /register", x.register)
	s.handle("POST /unregister", x.unregister)
	s.handle("GET /workers", x.list)
	s.handle("POST /events", x.post)
	s.handle("POST /query", x.query)
	s.handle("POST /query_by_hash", x.queryByHash)
	s.endpoint("GET /dump", x.dump)
}

func (x *shared) run(ctx context.Context) error {
	if x.subscriber == nil {
		<-ctx.Done()
		return nil
	}
	return x.subscriber.Run(ctx)
}

// register takes a worker in; one whose record has changed begins anew.
func (x *shared) register(r *http.Request) (int, any, error) {
	var reg Registration
	if err := decode(r.Body, &reg, false); err != nil {
		return 0, nil, err
	}
	fresh, err := x.add(&reg)
	if err != nil {
		return 0, nil, err
	}
	if fresh {
		return http.StatusCreated, reg, nil
	}
	return http.StatusOK, reg, nil
}

// add is register; it fills in defaults.
func (x *shared) add(reg *Registration) (fresh bool, err error) {
	if err := x.check(reg); err != nil {
		return false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.workers[reg.ID]
	if old != nil && old.Registration == *reg {
		return false, nil
	}
	m := x.models[reg.Model]
	alone := m == nil || m.workers == 0 || m.workers == 1 && old != nil && old.Model == reg.Model
	switch {
	case m == nil && len(x.models) >= maxModels:
		return false, &Error{Status: http.StatusConflict, Code: "too_many_models", Param: "model", Message: "the index has as many models as it takes"}
	case !alone && m.blockSize != reg.BlockSize:
		return false, &Error{Status: http.StatusConflict, Code: "block_size_differs", Param: "block_size", Message: "the model's other workers have another block size"}
	case m == nil:
		m = &indexed{published: index.New(index.Config{}), posted: index.New(index.Config{})}
		x.models[reg.Model] = m
	}
	if old != nil {
		x.remove(old)
	}
	w := &registered{Registration: *reg, idx: m.published}
	if reg.KVEvents == "post" {
		w.idx = m.posted
		for rank := range reg.Ranks {
			o := m.posted.Owner(reg.ID, rank)
			if o == index.NoOwner {
				m.posted.Drop(reg.ID)
				return false, &Error{Status: http.StatusConflict, Code: "too_many_ranks", Param: "data_parallel_ranks", Message: "the index has as many ranks as it takes"}
			}
			w.ranks = append(w.ranks, &posted{limit: maxPosted, view: events.NewView(m.posted, o, reg.BlockSize), record: events.NewRecord()})
		}
	} else {
		x.subscriber.Track(w.pool(), reg.ID, slices.Collect(upTo(reg.Ranks)), reg.BlockSize)
	}
	m.workers, m.blockSize = m.workers+1, reg.BlockSize
	x.workers[reg.ID] = w
	x.log.Info("worker registered", "worker", reg.ID, "model", reg.Model, "kv_events", reg.KVEvents, "ranks", reg.Ranks)
	return true, nil
}

// check finds what is wrong with a registration by itself, and fills in defaults.
func (x *shared) check(reg *Registration) error {
	if reg.Role == "" {
		reg.Role = pools.Both
	}
	if reg.KVEvents == "" {
		reg.KVEvents = "post"
	}
	if reg.Ranks == 0 {
		reg.Ranks = 1
	}
	switch {
	case reg.ID == "" || len(reg.ID) > pools.MaxIDBytes:
		return invalid("id", "must have 1 to %d bytes", pools.MaxIDBytes)
	case !reg.Role.Valid():
		return invalid("role", "must be prefill, decode or both")
	case reg.BlockSize < 1 || reg.BlockSize > pools.MaxBlockSize:
		return invalid("block_size", "must be 1 to %d tokens", pools.MaxBlockSize)
	case reg.Ranks < 1 || reg.Ranks > pools.MaxRanks:
		return invalid("data_parallel_ranks", "must be 0 to %d", pools.MaxRanks)
	case reg.KVEvents != "nats" && reg.KVEvents != "post":
		return invalid("kv_events", "must be nats or post")
	case reg.KVEvents == "nats" && x.subscriber == nil:
		return invalid("kv_events", "the service was started without --nats-url: post events to /events")
	}
	return checkModel(reg.Model)
}

// unregister takes a worker out, with all that it held.
func (x *shared) unregister(r *http.Request) (int, any, error) {
	var who struct {
		ID string `json:"id"`
	}
	if err := decode(r.Body, &who, false); err != nil {
		return 0, nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.workers[who.ID]
	if w == nil {
		return 0, nil, unknownWorker("id")
	}
	x.remove(w)
	x.log.Info("worker unregistered", "worker", who.ID)
	return http.StatusNoContent, nil, nil
}

// remove takes w out. The caller holds x.mu.
func (x *shared) remove(w *registered) {
	delete(x.workers, w.ID)
	m := x.models[w.Model]
	if m.workers--; m.workers == 0 {
		m.blockSize = 0
	}
	if w.KVEvents == "nats" {
		x.subscriber.Untrack(w.pool(), w.ID)
		return
	}
	w.idx.Drop(w.ID)
}

// list says which workers there are, and what each holds.
func (x *shared) list(*http.Request) (int, any, error) {
	type rank struct {
		Rank   int    `json:"rank"`
		Blocks int    `json:"device_blocks"`
		State  string `json:"state"`
	}
	type worker struct {
		Registration
		Ranks []rank `json:"ranks"`
	}
	states := map[string]string{}
	if x.subscriber != nil {
		for _, s := range x.subscriber.Sources() {
			states[s.Source.EventsSubject()] = s.State.String()
		}
	}
	answer := struct {
		Workers []worker `json:"workers"`
	}{[]worker{}}
	for _, w := range x.all("") {
		one := worker{Registration: w.Registration}
		for i := range w.Registration.Ranks {
			state := "posted"
			if w.KVEvents == "nats" {
				state = states[events.Source{Pool: w.pool(), Worker: w.ID, Rank: i}.EventsSubject()]
			}
			o, _ := w.idx.Lookup(w.ID, i)
			one.Ranks = append(one.Ranks, rank{i, w.idx.Blocks(o), state})
		}
		answer.Workers = append(answer.Workers, one)
	}
	return http.StatusOK, answer, nil
}

// all returns the workers of a model, or of all where it is empty, by id.
func (x *shared) all(model string) []*registered {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var ws []*registered
	for _, w := range x.workers {
		if model == "" || w.Model == model {
			ws = append(ws, w)
		}
	}
	slices.SortFunc(ws, func(a, b *registered) int { return strings.Compare(a.ID, b.ID) })
	return ws
}

// indexFor gives the subscriber the index of a pool.
func (x *shared) indexFor(pool string) *index.Index {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.models[pool[:strings.LastIndexByte(pool, '/')]].published
}

// publishedOf is the index of a worker that publishes over NATS; nil of others.
func (x *shared) publishedOf(worker string) *index.Index {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if w := x.workers[worker]; w != nil && w.KVEvents == "nats" {
		return w.idx
	}
	return nil
}

// held counts what the indexes hold.
func (x *shared) held() float64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	n := 0
	for _, m := range x.models {
		n += m.published.Stats().Held + m.posted.Stats().Held
	}
	return float64(n)
}

func (x *shared) dump(w http.ResponseWriter, _ *http.Request) int {
	return dump(w, x.name(), func(d *dumpWriter) {
		for _, w := range x.all("") {
			d.worker(w.Registration)
			if w.KVEvents == "nats" {
				for rank := range w.Registration.Ranks {
					d.blocks(w.idx, w.ID, rank)
				}
				continue
			}
			for rank, p := range w.ranks {
				d.events(w.ID, rank, p)
			}
		}
	})
}

// restore takes over a sibling's workers, and what was posted of them. What
// comes over NATS the publishers say themselves; a sibling's word is taken for
// those of whom nothing was heard yet, until they speak.
func (x *shared) restore(ctx context.Context, r *dumpReader) error {
	var told []*blocksLine
	for {
		l, err := r.next()
		if errors.Is(err, io.EOF) {
			return restorePublished(ctx, x.subscriber, told, x.publishedOf, x.log)
		}
		if err != nil {
			return err
		}
		switch {
		case l.Worker != nil:
			var reg Registration
			if err = json.Unmarshal(l.Worker, &reg); err == nil {
				_, err = x.add(&reg)
			}
			if err != nil {
				x.log.Warn("a sibling's worker is not taken over", "worker", reg.ID, "error", err)
			}
		case l.Events != nil:
			x.replay(l.Events)
		case l.Blocks != nil:
			told = append(told, l.Blocks)
		}
	}
}

func (w *registered) pool() string { return w.Model + "/" + string(w.Role) }

func unknownWorker(param string) error {
	return &Error{Status: http.StatusNotFound, Code: "unknown_worker", Param: param, Message: "no such worker is registered"}
}

// upTo yields 0 … n−1.
func upTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}
