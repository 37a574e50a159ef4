package stack

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/edge"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
	"github.com/tandem-pd/tandem/router/index"
	"github.com/tandem-pd/tandem/router/remote"
)

var _ edge.Catalog = (*Gateway)(nil)

// Models lists the models that have workers now, each under all its names.
func (g *Gateway) Models() []openai.Model {
	models := []openai.Model{}
	view := g.Roster.View()
	for _, name := range view.Models() {
		m := openai.Model{ID: name, Object: "model", OwnedBy: "tandem", Created: g.began.Unix()}
		for _, p := range view.Pools() {
			for _, w := range p.Members {
				if p.Model == name && w.Worker.ContextLength > 0 {
					m.MaxModelLen = w.Worker.ContextLength
				}
			}
		}
		models = append(models, m)
		for _, m.ID = range view.ServedNames(name) {
			models = append(models, m)
		}
	}
	return models
}

// workersReport is the answer of GET /workers.
type workersReport struct {
	Pools   []handoff.PoolReport      `json:"pools"`
	Queues  map[string]queueReport    `json:"queues"`
	Refused []refusedReport           `json:"refused,omitempty"`
	Events  map[string][]sourceReport `json:"kv_events,omitempty"`
	// Remote is how the remote indexes are doing, in the order in which they are asked.
	Remote []remote.State `json:"remote_index,omitempty"`
	// Cordoned is the ids that an operator keeps out, of workers here or away.
	Cordoned []string `json:"cordoned,omitempty"`
}

type queueReport struct {
	Waiting       int   `json:"waiting"`
	WaitingTokens int64 `json:"waiting_tokens"`
	WaitingBytes  int64 `json:"waiting_bytes"`
}

type refusedReport struct {
	ID     string `json:"id"`
	Source string `json:"source,omitempty"`
	Reason string `json:"reason"`
}

type sourceReport struct {
	Worker string `json:"worker"`
	Rank   int    `json:"rank"`
	// Transport is "nats" or "zmq".
	Transport string `json:"transport"`
	State     string `json:"state"`
	// Reason is why it is predicted: "loss" of events, or "parity".
	Reason string `json:"reason,omitempty"`
	Seq    uint64 `json:"seq"`
	Gaps   uint64 `json:"gaps"`
	// Losses is how often events were lost for good.
	Losses uint64 `json:"losses"`
	// Healed is how often what was missing was had, by way.
	Healed map[string]uint64 `json:"healed"`
	// Heard is how many seconds ago something was heard of it; absent for never.
	Heard  *float64 `json:"heard_seconds,omitempty"`
	Blocks int      `json:"blocks"`
	// Parity is how its events compare with what its answers say, absent where
	// nothing was compared yet.
	Parity *router.RankParity `json:"parity,omitempty"`
}

// Workers is the answer of GET /workers.
func (g *Gateway) Workers() any {
	out := workersReport{Pools: g.Flow.Report(), Queues: map[string]queueReport{}, Cordoned: g.Roster.Cordoned()}
	for model, s := range g.Flow.Waiting() {
		out.Queues[model] = queueReport{Waiting: s.Waiting, WaitingTokens: s.WaitingTokens, WaitingBytes: s.WaitingBytes}
	}
	for _, r := range g.Roster.Refused() {
		out.Refused = append(out.Refused, refusedReport{ID: r.Worker.ID, Source: r.Source, Reason: r.Err.Error()})
	}
	if g.remote != nil {
		out.Remote = g.remote.States()
	}
	if g.subscriber != nil {
		out.Events = map[string][]sourceReport{}
		for _, s := range g.subscriber.Sources() {
			out.Events[s.Source.Pool] = append(out.Events[s.Source.Pool], g.sourceReport(s))
		}
	}
	return out
}

// reportOf is what GET /workers says of a source of KV events.
func reportOf(s events.SourceStatus) sourceReport {
	r := sourceReport{
		Worker: s.Source.Worker, Rank: s.Source.Rank, Transport: s.Transport, State: s.State.String(),
		Seq: s.Seq, Gaps: s.Gaps, Losses: s.Losses, Blocks: s.Blocks, Healed: map[string]uint64{},
	}
	for _, way := range events.Ways {
		r.Healed[way.String()] = s.Healed[way]
	}
	if !s.Heard.IsZero() {
		ago := time.Since(s.Heard).Round(time.Millisecond).Seconds()
		r.Heard = &ago
	}
	return r
}

// Cordon takes a worker out of the choice, or back in.
func (g *Gateway) Cordon(id string, on bool) (edge.Standing, error) {
	if err := g.Roster.Drain(id, on); err != nil {
		return edge.Standing{}, err
	}
	for _, p := range g.Flow.Report() {
		for _, w := range p.Workers {
			if w.ID == id {
				return edge.Standing{
					Worker: id, Model: p.Model, Role: p.Role, State: w.State,
					Requests: w.Requests, ActiveBlocks: w.ActiveBlocks, PrefillTokens: w.PrefillTokens,
				}, nil
			}
		}
	}
	// It left in this moment, or is cordoned for when it comes back.
	return edge.Standing{Worker: id, State: "absent"}, nil
}

// readiness is the detail of GET /health.
type readiness struct {
	Status string          `json:"status"`
	Awaits string          `json:"awaits,omitempty"` // while the gateway starts: what is missing
	Pools  []poolReadiness `json:"pools"`
	// Refused is the workers that came and cannot serve with the others.
	Refused []refusedReport `json:"refused,omitempty"`
}

type poolReadiness struct {
	Model   string     `json:"model"`
	Role    pools.Role `json:"role"`
	Workers int        `json:"workers"`
}

// prefillPatience is how long after the start a prefill pool of which nobody was
// seen yet is waited for. A fleet that has none is ready then, degraded.
const prefillPatience = 10 * time.Second

// Ready reports whether every model that has workers can be served: by a pool
// of role both, or by a prefill and a decode pool. A prefill pool that has
// emptied after it was there is not needed while decode may stand in for it:
// the gateway then serves degraded, and says so.
func (g *Gateway) Ready() (bool, any) {
	now := time.Now()
	out := readiness{Status: "ok", Pools: []poolReadiness{}}
	view := g.Roster.View()
	ok := len(view.Models()) > 0
	for _, model := range view.Models() {
		eligible := map[pools.Role]int{}
		for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
			if !view.Known(model, role) {
				continue
			}
			for _, m := range view.Pool(model, role).Members {
				if m.Eligible(now) {
					eligible[role]++
				}
			}
			out.Pools = append(out.Pools, poolReadiness{model, role, eligible[role]})
		}
		standIn := g.cfg.Flow.DecodeFallback && (view.Known(model, pools.Prefill) || now.Sub(g.began) > prefillPatience)
		switch {
		case eligible[pools.Both] > 0, eligible[pools.Decode] > 0 && eligible[pools.Prefill] > 0:
		case eligible[pools.Decode] > 0 && standIn:
			out.Status = "degraded"
		default:
			ok = false
		}
	}
	for _, r := range view.Refused() {
		switch r.Err.(type) {
		case *pools.RefusedError, *pools.NoHandOffError: // the others' words name addresses, and anybody may ask
			out.Refused = append(out.Refused, refusedReport{ID: r.Worker.ID, Source: r.Source, Reason: r.Err.Error()})
		}
	}
	if !ok {
		out.Status = "unavailable"
	}
	if out.Awaits = g.Awaits(); out.Awaits != "" {
		ok, out.Status = false, "starting"
	}
	return ok, out
}

// index finds a pool's index by the pool's name, "model/role".
func (g *Gateway) index(pool string) *index.Index {
	i := strings.LastIndexByte(pool, '/')
	return g.routers.Index(pool[:i], pools.Role(pool[i+1:]))
}

// router is the same for a pool's router.
func (g *Gateway) router(pool string) *router.Router {
	i := strings.LastIndexByte(pool, '/')
	return g.routers.For(pool[:i], pools.Role(pool[i+1:]))
}

// follower tells the subscriber which workers to follow, as the roster changes,
// and the routers which of those cannot be relied on, as their events come.
type follower struct {
	roster     *pools.Roster
	subscriber *events.Subscriber
	routers    *router.Set
	nats       bool // there is a bus
	log        *slog.Logger

	mu       sync.Mutex          // guards what follows
	followed map[string]followed // by worker id
	doubted  map[string]string   // what routers were told, by pool
	epochs   map[events.Source]uint64
	retell   *retelling // nil: nobody is asked
}

type followed struct {
	pool        string
	incarnation string
	ranks       int
	blockSize   int
	kvBlocks    int
	zmq         events.ZMQ // without an endpoint where it is NATS
}

// update is called after each change of the roster, by several at once.
func (f *follower) update() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := map[string]followed{}
	for _, p := range f.roster.Pools() {
		for _, m := range p.Members {
			w := m.Worker
			if w.KVEvents != "zmq" && (w.KVEvents != "nats" || !f.nats) {
				continue
			}
			now[w.ID] = followed{
				p.Name(), w.Incarnation, w.Ranks(), w.BlockSize, w.TotalKVBlocks,
				events.ZMQ{Endpoint: w.KVEndpoint, Replay: w.KVReplay, Topic: w.KVTopic},
			}
		}
	}
	for id, old := range f.followed { // first, for a port of theirs may be another's now
		if old != now[id] {
			f.subscriber.Untrack(old.pool, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if f.followed[id] != now[id] {
			f.follow(now[id], id)
		}
	}
	f.followed = now
	f.doubt()
}

// follow has one worker followed. The caller holds f.mu.
func (f *follower) follow(w followed, id string) {
	ranks := slices.Collect(upTo(w.ranks))
	if w.zmq.Endpoint == "" {
		f.subscriber.Track(w.pool, id, ranks, w.blockSize, w.kvBlocks)
	} else if err := f.subscriber.TrackZMQ(w.pool, id, ranks, w.blockSize, w.kvBlocks, w.zmq); err != nil {
		f.log.Warn("KV events are not followed, the worker's cache is predicted", "worker", id, "error", err)
	}
}

// changed is called when the state of a source has changed.
func (f *follower) changed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doubt()
}

// doubt tells each pool's router which ranks' events cannot be relied on: those
// that nobody follows, those of which events are missing for good, and, of
// engines that publish by themselves, those of which nothing is known yet. The
// caller holds f.mu.
func (f *follower) doubt() {
	states := map[events.Source]events.SourceStatus{}
	epochs := map[events.Source]uint64{}
	for _, s := range f.subscriber.Sources() {
		states[s.Source], epochs[s.Source] = s, s.Epoch
	}
	was, lost := f.epochs, map[router.Rank]events.Source{}
	f.epochs = epochs
	if f.doubted == nil {
		f.doubted = map[string]string{}
	}
	for _, p := range f.roster.Pools() {
		ranks, told := map[router.Rank]struct{}{}, ""
		for _, m := range p.Members {
			w := m.Worker
			if w.KVEvents == "" || w.KVEvents == "none" {
				continue
			}
			for rank := range w.Ranks() {
				source := events.Source{Pool: p.Name(), Worker: w.ID, Rank: rank}
				s, known := states[source]
				if was[source] != s.Epoch {
					f.routers.For(p.Model, p.Role).Anew(router.Rank{Worker: w.ID, Rank: rank})
				}
				if s.State == events.Predicted && retells(w) {
					lost[router.Rank{Worker: w.ID, Rank: rank}] = source
				}
				unknown := !known || s.State == events.Waiting
				if s.State == events.Predicted || unknown && (w.KVEvents == "zmq" || !f.nats) {
					ranks[router.Rank{Worker: w.ID, Rank: rank}] = struct{}{}
					told += fmt.Sprintf("%s/%d ", w.ID, rank)
				}
			}
		}
		if f.doubted[p.Name()] != told {
			f.doubted[p.Name()] = told
			f.routers.For(p.Model, p.Role).Doubt(ranks)
		}
	}
	if f.retell != nil {
		f.retell.lose(lost)
	}
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
