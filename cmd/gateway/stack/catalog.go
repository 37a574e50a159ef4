package stack

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/router/feed"
)

var _ edge.Catalog = (*Gateway)(nil)

// Models lists the models that have workers, under all their names, and their adapters.
func (g *Gateway) Models() []openai.Model {
	all := []openai.Model{}
	view := g.Roster.View()
	for _, name := range view.Models() {
		card, _ := models.CardOf(g.Roster, name) // admission's limit
		m := openai.Model{ID: name, Object: "model", OwnedBy: "tandem", Created: g.began.Unix(), MaxModelLen: card.ContextTokens}
		all = append(all, m)
		for _, m.ID = range view.ServedNames(name) {
			all = append(all, m)
		}
		m.Parent = name
		for _, m.ID = range view.Adapters(name) {
			all = append(all, m)
		}
	}
	return all
}

// OneSystem implements [edge.Catalog].
func (g *Gateway) OneSystem(model string) bool {
	model, _ = g.Roster.Resolve(model)
	language := g.languages.Of(model)
	return language != nil && language.OneSystem()
}

// workersReport is the answer of GET /workers.
type workersReport struct {
	Pools   []observe.PoolReport      `json:"pools"`
	Queues  map[string]queueReport    `json:"queues"`
	Refused []refusedReport           `json:"refused,omitempty"`
	Events  map[string][]sourceReport `json:"kv_events,omitempty"`
	// Remote is the state of the remote indexes, in the order of lookups.
	Remote []service.State `json:"remote_index,omitempty"`
	// Models is the tokenizers and chat templates by model.
	Models map[string]models.LanguageReport `json:"models"`
	// Cordoned is the ids of cordoned workers, here or away.
	Cordoned []string `json:"cordoned,omitempty"`
	// Replicas is the other gateways of the group.
	Replicas []replicaReport `json:"replicas,omitempty"`
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
	// Reason is why it is predicted: "loss" of events, "parity", or "silent" with the likely cause.
	Reason string `json:"reason,omitempty"`
	Seq    uint64 `json:"seq"`
	Gaps   uint64 `json:"gaps"`
	// Losses counts unrepaired losses of events.
	Losses uint64 `json:"losses"`
	// Repaired counts repaired gaps, by method.
	Repaired map[string]uint64 `json:"healed"`
	// Heard is the seconds since its latest message; absent for never.
	Heard  *float64 `json:"heard_seconds,omitempty"`
	Blocks int      `json:"blocks"`
	// Parity compares its events with its answers; absent before the first comparison.
	Parity *overlap.RankParity `json:"parity,omitempty"`
}

// Workers is the answer of GET /workers.
func (g *Gateway) Workers() any {
	out := workersReport{
		Pools: g.Fleet.Report(), Queues: map[string]queueReport{}, Models: g.languages.Report(),
		Cordoned: g.Roster.Cordoned(), Replicas: replicaReports(g.member.Peers()),
	}
	for model, s := range g.Flow.Waiting() {
		out.Queues[model] = queueReport{Waiting: s.Waiting, WaitingTokens: s.WaitingTokens, WaitingBytes: s.WaitingBytes}
	}
	for _, r := range g.Roster.Refused() {
		out.Refused = append(out.Refused, refusedReport{ID: r.Worker.ID, Source: r.Source, Reason: r.Err.Error()})
	}
	if g.remote != nil {
		out.Remote = g.remote.States()
	}
	if g.feed != nil {
		out.Events = map[string][]sourceReport{}
		for _, s := range g.feed.Sources() {
			out.Events[s.Source.Pool] = append(out.Events[s.Source.Pool], g.sourceReport(s))
		}
	}
	return out
}

func (g *Gateway) sourceReport(s follow.SourceStatus) sourceReport {
	r := sourceReport{
		Worker: s.Source.Worker, Rank: s.Source.Rank, Transport: s.Transport,
		Seq: s.Seq, Gaps: s.Gaps, Losses: s.Losses, Blocks: s.Blocks, Repaired: map[string]uint64{},
	}
	for _, method := range follow.Methods {
		r.Repaired[method.String()] = s.Repaired[method]
	}
	if !s.LastSeen.IsZero() {
		ago := time.Since(s.LastSeen).Round(time.Millisecond).Seconds()
		r.Heard = &ago
	}
	var t eventTrust
	t, r.Parity = g.trust(s)
	r.State, r.Reason = t.state.String(), t.reason
	return r
}

// trust returns how far a source's view is trusted, with its parity if it was ever compared.
func (g *Gateway) trust(s follow.SourceStatus) (t eventTrust, parity *overlap.RankParity) {
	switch t.state = s.State; {
	case g.feed.Silent(s.Source):
		t.reason = "silent: " + feed.SilentCause
	case s.State == follow.Predicted:
		t.reason = "loss"
	}
	slash := strings.LastIndexByte(s.Source.Pool, '/')
	model, role := s.Source.Pool[:slash], pools.Role(s.Source.Pool[slash+1:])
	if p, ok := g.routers.For(model, role).Sources().RankParity(overlap.Rank{Worker: s.Source.Worker, Rank: s.Source.Rank}); ok {
		if parity = &p; p.Marked && t.reason == "" {
			t = eventTrust{follow.Predicted, "parity"}
		}
	}
	return t, parity
}

// Cordon takes a worker out of the choice, or back in, and persists that. With move, its streams on all gateways resume
// on other workers where possible.
func (g *Gateway) Cordon(id string, on, move bool) (edge.Standing, error) {
	if err := g.Roster.Drain(id, on); err != nil {
		return edge.Standing{}, err
	}
	g.decode.ResumeElsewhere(id, move)
	standing := g.standing(id)
	if on {
		standing.Kept = g.keep(cordonOf+id, keptCordon{move, g.sign()})
	} else {
		standing.Kept = g.keep(cordonOf+id, nil)
	}
	return standing, nil
}

// Forget removes a lost worker from the list.
func (g *Gateway) Forget(id string) error { return g.Roster.Forget(id) }

// standing returns a worker's state.
func (g *Gateway) standing(id string) edge.Standing {
	for _, p := range g.Fleet.Report() {
		for _, w := range p.Workers {
			if w.ID == id {
				return edge.Standing{
					Worker: id, Model: p.Model, Role: p.Role, State: w.State,
					Requests: w.Requests, ActiveBlocks: w.ActiveBlocks, PrefillTokens: w.PrefillTokens,
				}
			}
		}
	}
	// It has just left, or is cordoned for its return.
	return edge.Standing{Worker: id, State: "absent"}
}

// readiness is the detail of GET /health.
type readiness struct {
	Status string          `json:"status"`
	Awaits string          `json:"awaits,omitempty"` // while the gateway starts: what is missing
	Pools  []poolReadiness `json:"pools"`
	// Refused is the workers that cannot serve with the others.
	Refused []refusedReport `json:"refused,omitempty"`
}

type poolReadiness struct {
	Model   string     `json:"model"`
	Role    pools.Role `json:"role"`
	Workers int        `json:"workers"`
}

// prefillPatience is how long after the start Ready waits for a prefill pool's first worker. A fleet without one is
// then ready, degraded.
const prefillPatience = 10 * time.Second

// Ready reports whether every model that has workers can be served: by role both, or by prefill and decode. An
// emptied prefill pool is not required while decode may replace it: the gateway then serves degraded, and reports it.
func (g *Gateway) Ready() (bool, any) { return g.readiness(nil) }

// readiness is [Gateway.Ready] or, with responds, that of a starting gateway: a worker counts once responds returns
// true.
func (g *Gateway) readiness(responds func(*pools.Member) bool) (bool, readiness) {
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
				if m.Eligible(now) && (responds == nil || responds(&m)) {
					eligible[role]++
				}
			}
			out.Pools = append(out.Pools, poolReadiness{model, role, eligible[role]})
		}
		standIn := g.cfg.Flow.DecodeFallback && (responds == nil && view.Known(model, pools.Prefill) || now.Sub(g.began) > prefillPatience)
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
		case *pools.RefusedError, *pools.NoHandOffError: // other errors name addresses, and /health is open
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

// Waiting returns what is missing until every model that has workers can be served, or empty. A worker by URL counts
// once it has responded.
func (g *Gateway) Waiting() string {
	responds := func(m *pools.Member) bool {
		given := func(p *discovery.Prober) bool { return p.Responds(m.Worker.ID) }
		return m.Source == fromEtcd || slices.ContainsFunc(g.given.probers, given)
	}
	ok, now := g.readiness(responds)
	switch {
	case ok:
		return ""
	case now.Awaits != "":
		return "waiting: " + now.Awaits
	}
	up, known, lacks := 0, 0, ""
	for _, p := range g.given.probers {
		known += p.Wanted()
	}
	for _, p := range g.Roster.Pools() {
		for i := range p.Members {
			if p.Members[i].Source == fromEtcd {
				known++
			}
		}
	}
	serve := map[pools.Role]map[string]int{pools.Prefill: {}, pools.Decode: {}}
	for _, p := range now.Pools {
		up += p.Workers
		for role, of := range serve {
			if p.Role == role || p.Role == pools.Both {
				of[p.Model] += p.Workers
			}
		}
	}
	for _, model := range g.Roster.Models() {
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			if serve[role][model] == 0 {
				lacks += fmt.Sprintf("; %s has no %s worker", model, role)
			}
		}
	}
	if known == 0 {
		return "waiting for workers: none has joined"
	}
	return fmt.Sprintf("waiting for workers: %d of %d up%s", up, max(known, up), lacks)
}
