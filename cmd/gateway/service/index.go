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

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/router/feed"
)

// maxModels bounds the models ever registered at one index.
const maxModels = 1024

// shared is the index for several routers. Workers register by HTTP; their events arrive over NATS or ZMQ, or are
// posted.
type shared struct {
	budget     index.Config // of each index
	log        *slog.Logger
	subscriber *follow.Subscriber
	nats       bool          // there is a bus
	changes    atomic.Uint64 // of registrations and ranks' states
	looks      sync.Pool     // of *looked

	mu      sync.RWMutex // guards all below
	models  map[string]*indexed
	workers map[string]*registered
}

// indexed is one model's blocks. Those from subscriptions and posted ones are separate, because the subscriber drops
// workers at its own time.
type indexed struct {
	published, posted *index.Index
	workers           int
	blockSize         int // in tokens; 0 without workers
	layout            atomic.Pointer[layout]
}

// posted is a rank whose events are posted.
type posted struct {
	limit int        // blocks
	mu    sync.Mutex // guards all below
	view  *view.View
	spoke bool // something was posted
}

// NewIndex returns the service of `gateway index`. Without a bus, events arrive over ZMQ or are posted. scrape serves
// /metrics.
func NewIndex(
	cfg Config, events follow.Config, bus wire.Bus, scrape http.Handler, log *slog.Logger, reg prometheus.Registerer,
) *Server {
	x := &shared{
		log: log, budget: index.Config{MaxBlocks: cfg.IndexMaxBlocks}, nats: bus != nil,
		models: map[string]*indexed{}, workers: map[string]*registered{},
	}
	x.looks.New = func() any { return new(looked) }
	events.OnState = func() { x.changes.Add(1) }
	x.subscriber = follow.New(events, bus, x.indexFor, log, reg)
	feed.ExportIndexes(reg, x.sizes)
	return newServer(cfg, x, scrape, log, reg)
}

func (x *shared) routes(s *Server) {
	s.handle("POST "+PathRegister, small, x.register)
	s.handle("POST "+PathUnregister, small, x.unregister)
	s.handle("GET "+PathWorkers, small, x.list)
	s.handle("POST /events", large, x.post)
	s.handle("POST /query", large, x.query)
	s.endpoint("POST "+PathQueryByHash, large, x.queryByHash)
}

func (x *shared) run(ctx context.Context) error { return x.subscriber.Run(ctx) }

// list returns the registered workers and what each holds.
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

// all returns the workers of a model, or all if it is empty, by id.
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

func (x *shared) indexFor(pool string) follow.Index {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.models[pool[:strings.LastIndexByte(pool, '/')]].published
}

// sizes emits the total size of each model's indexes.
func (x *shared) sizes(emit feed.EmitIndex) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for model, m := range x.models {
		size := m.published.Stats()
		size.Add(m.posted.Stats())
		emit(model, "", size)
	}
}
