package service

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/service/remote"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/router/feed"
)

// maxModels bounds the models that were ever registered at one index.
const maxModels = 1024

// shared is the index that several routers share. Workers are registered by
// HTTP; their events come over NATS or ZMQ, or are posted.
type shared struct {
	budget     index.Config // of each index
	log        *slog.Logger
	subscriber *follow.Subscriber
	nats       bool          // there is a bus
	changes    atomic.Uint64 // of who is registered, and of what is known of them
	looks      sync.Pool     // of *looked

	mu      sync.RWMutex // guards what follows
	models  map[string]*indexed
	workers map[string]*registered
}

// indexed is one model's blocks. Those that come over NATS and those that are
// posted are kept apart, because the subscriber drops workers in its own time.
type indexed struct {
	published, posted *index.Index
	workers           int
	blockSize         int // tokens; of its workers, 0 without any
	layout            atomic.Pointer[layout]
}

// posted is a rank whose events are posted.
type posted struct {
	limit int        // blocks
	mu    sync.Mutex // guards what follows
	view  *view.View
	spoke bool // something was posted
}

// NewIndex returns the service of `gateway index`. bus may be nil: events come over
// ZMQ then, or are posted. scrape answers /metrics.
func NewIndex(cfg Config, events follow.Config, bus wire.Bus, scrape http.Handler, log *slog.Logger, reg prometheus.Registerer) (*Server, error) {
	x := &shared{log: log, budget: index.Config{MaxBlocks: cfg.IndexMaxBlocks}, nats: bus != nil, models: map[string]*indexed{}, workers: map[string]*registered{}}
	x.looks.New = func() any { return new(looked) }
	events.OnState = func() { x.changes.Add(1) }
	var err error
	if x.subscriber, err = follow.New(events, bus, feed.Into(x.indexFor), log, reg); err != nil {
		return nil, err
	}
	feed.ExportIndexes(reg, x.sizes)
	return newServer(cfg, x, scrape, log, reg), nil
}

func (x *shared) routes(s *Server) {
	s.handle("POST "+remote.PathRegister, small, x.register)
	s.handle("POST "+remote.PathUnregister, small, x.unregister)
	s.handle("GET "+remote.PathWorkers, small, x.list)
	s.handle("POST /events", large, x.post)
	s.handle("POST /query", large, x.query)
	s.endpoint("POST "+remote.PathQueryByHash, large, x.queryByHash)
}

func (x *shared) run(ctx context.Context) error { return x.subscriber.Run(ctx) }

// list says which workers there are, and what each holds.
func (x *shared) list(*http.Request) (int, any, error) {
	type rank struct {
		Rank   int    `json:"rank"`
		Blocks int    `json:"device_blocks"`
		State  string `json:"state"`
	}
	type worker struct {
		remote.Registration
		Ranks []rank `json:"ranks"`
	}
	states := x.states()
	answer := struct {
		Workers []worker `json:"workers"`
	}{[]worker{}}
	for _, w := range x.all("") {
		one := worker{Registration: w.Registration}
		for i := range w.Registration.Ranks {
			state := "posted"
			if w.KVEvents != "post" {
				state = states[w.source(i)].String()
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

// sizes emits the size of each model's indexes together.
func (x *shared) sizes(emit feed.EmitIndex) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for model, m := range x.models {
		size := m.published.Stats()
		size.Add(m.posted.Stats())
		emit(model, "", size)
	}
}
