package handoff

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// routingQuery is what the router is asked for r, without the worker's pins.
func (f *Flow) routingQuery(r *request, exclude []string) router.Request {
	x := &r.call.Request.Nvext
	req := router.Request{
		ID: r.id, Attempt: r.attempt + 1, ISL: r.isl, Hashes: r.hashes, DecodeHashes: r.decodeHashes, Text: r.ids == nil, Told: r.told, Exclude: exclude,
		Pin: r.pins.prefill.asked(), DecodePin: r.pins.decode.asked(),
		Required: x.RequiredTaints, Preferred: x.PreferredTaints, Override: r.override,
		Explain: f.cfg.LogRouting || x.Wants("routing"),
	}
	if x.OSL != nil {
		req.OSL = int(*x.OSL)
	}
	return req
}

// constrain reads the weights that the request wants otherwise. Its error is an
// *openai.Error: 400 for a weight of the cost that this gateway does not reckon
// by.
func (f *Flow) constrain(r *request) error {
	o := r.call.Request.Nvext.Override
	if o == nil {
		return nil
	}
	computes, _ := f.computers(r)
	r.override = &router.Override{
		OverlapWeight: o.OverlapScoreWeight, OverlapCredit: o.OverlapScoreCredit, PrefillScale: o.PrefillLoadScale,
		SharedMultiplier: o.SharedCacheMultiplier, Temperature: o.RouterTemperature,
		TrackPrefillTokens: o.TrackPrefillTokens, AssumeReuse: o.AssumeKVReuse,
	}
	cost := computes.Cost()
	for _, c := range []struct {
		name string
		cost string
		says *float64
	}{
		{"overlap_score_credit", router.Credited, o.OverlapScoreCredit},
		{"prefill_load_scale", router.Credited, o.PrefillLoadScale},
		{"shared_cache_multiplier", router.Credited, o.SharedCacheMultiplier},
		{"overlap_score_weight", router.Classic, o.OverlapScoreWeight},
	} {
		if c.says != nil && cost != c.cost {
			field := "nvext.router_config_override." + c.name
			return openai.BadRequest(field, "%s is a weight of the cost %q, and this gateway's --router-cost is %s", field, c.cost, cost)
		}
	}
	return nil
}

// query answers with the workers that the request would go to now. It books
// nothing, does not queue and asks no worker.
func (f *Flow) query(r *request, out Sink) error {
	now := time.Now()
	model := r.call.Request.Model
	req := f.routingQuery(r, f.avoid(r, now).exclude)
	if err := f.standing(r, now); err != nil {
		return err
	}
	decodes := f.generators(r)
	chosen := workerID{}
	if decodes.Role == pools.Decode && r.oneLeg() == "" {
		p, why, err := f.rooms.Prefill.Router(model).Pick(f.rooms.Prefill.Pool(model), req, now)
		switch {
		case err == nil:
			chosen.Prefill, chosen.PrefillRank, r.why.p = p.Worker.ID, &p.Rank, why
		case !errors.Is(err, router.ErrNoWorkers):
			return unchosen(err)
		case r.pins.prefill.Worker != "":
			return pinnedAway(&r.pins.prefill)
		case !f.cfg.DecodeFallback:
			return refusal(errNoPrefill)
		}
	}
	req = req.Second()
	d, why, err := f.rooms.Decode.Router(model, decodes.Role).Pick(decodes, req, now)
	if err != nil {
		return unchosen(err)
	}
	chosen.Decode, chosen.DecodeRank, r.why.d = d.Worker.ID, &d.Rank, why
	r.first.p, r.first.d = chosen.Prefill, chosen.Decode
	body := queryAnswer(r, &chosen)
	if r.call.Request.Stream {
		out.Start("text/event-stream")
		return out.Write(append(openai.AppendEvent(nil, body), "data: [DONE]\n\n"...))
	}
	out.Start("application/json")
	return out.Write(body)
}

// unchosen is what the client of a query is told; nobody waits for a worker.
func unchosen(err error) error {
	if errors.Is(err, router.ErrBusy) || errors.Is(err, router.ErrNoRoom) {
		return overloaded("every worker is busy now: the request would wait")
	}
	_, err = granted(nil, err)
	return refusal(err)
}

// overloaded is the 529 of workers that are all above a threshold, or full.
func overloaded(message string) *openai.Error {
	e := &openai.Error{Status: openai.StatusOverloaded, Type: "overloaded_error", Code: "workers_overloaded", RetryAfter: time.Second}
	e.Message = message
	return e
}

// routing is nvext.routing: how the workers were chosen, and what came of it.
type routing struct {
	Prefill *legRouting `json:"prefill,omitempty"`
	Decode  *legRouting `json:"decode,omitempty"`
	// Predicted is the prompt tokens that the router believed cached on the worker
	// that computes it, Actual what that worker said; absent where it said nothing.
	Predicted int  `json:"predicted_cached_tokens"`
	Actual    *int `json:"actual_cached_tokens,omitempty"`
	// Remote is what came of asking a remote index, absent where none was asked.
	Remote string `json:"remote_index,omitempty"`
}

// legRouting is the choice of one leg's worker.
type legRouting struct {
	Policy     string  `json:"policy"`
	Worker     string  `json:"worker_id"`
	Cost       float64 `json:"cost"`
	Overlap    int     `json:"overlap_blocks"`
	Considered int     `json:"candidates"` // of which Terms has router.MaxTerms at most
	Terms      []term  `json:"terms"`
}

// term is a candidate's cost and what it is made of; see router.Term.
type term struct {
	Worker      string  `json:"worker_id"`
	Rank        int     `json:"dp_rank"`
	Cost        float64 `json:"cost"`
	Weight      float64 `json:"prefill_weight"`
	Prefill     float64 `json:"prefill_blocks"`
	Active      float64 `json:"active_blocks"`
	Requests    float64 `json:"active_requests,omitempty"`
	Raw         float64 `json:"raw_prefill_blocks,omitempty"`
	Credit      float64 `json:"overlap_credit,omitempty"`
	CreditDecay float64 `json:"credit_decay,omitempty"`
	Cached      int     `json:"cached_blocks"`
	Host        int     `json:"host_blocks,omitempty"`
	Disk        int     `json:"disk_blocks,omitempty"`
	Shared      int     `json:"shared_blocks,omitempty"`
	Favour      float64 `json:"preferred_taints,omitempty"`
}

// legRoutingOf shows a choice, nil where none was explained.
func legRoutingOf(why *router.Why, worker string) *legRouting {
	if len(why.Terms) == 0 {
		return nil
	}
	terms := slices.Clone(why.Terms)
	slices.SortStableFunc(terms, func(a, b router.Term) int {
		if first := cmp.Compare(b2i(b.Worker == worker), b2i(a.Worker == worker)); first != 0 {
			return first
		}
		return cmp.Compare(a.Cost, b.Cost)
	})
	l := &legRouting{Policy: why.Policy, Worker: worker, Cost: why.Cost, Overlap: why.Overlap, Considered: why.Candidates}
	for _, t := range terms {
		l.Terms = append(l.Terms, term{
			t.Worker, t.Rank, t.Cost, t.OverlapWeight, t.PrefillBlocks, t.ActiveBlocks, t.Requests, t.RawPrefillBlocks,
			t.Credit, t.CreditDecay, t.CachedBlocks, t.HostBlocks, t.DiskBlocks, t.SharedBlocks, t.Favour,
		})
	}
	return l
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// routing shows how r's workers were chosen, nil where nothing was explained. t
// is nil where nothing ran.
func (r *request) routing(t *decode.Transcript) *routing {
	out := &routing{Prefill: legRoutingOf(&r.why.p, r.first.p), Decode: legRoutingOf(&r.why.d, r.first.d), Remote: r.remote}
	if out.Prefill == nil && out.Decode == nil {
		return nil
	}
	tokens := r.overlapTokens
	if t == nil && r.why.p.Overlap > 0 {
		tokens = r.why.p.Overlap * r.card.blockSize
	} else if t == nil {
		tokens = r.why.d.Overlap * r.card.decodeBlockSize
	}
	out.Predicted = min(r.isl, tokens)
	if actual := r.found(t); actual >= 0 && t != nil {
		out.Actual = &actual
	}
	return out
}

// LogValue keeps the log's text form to one line of JSON.
func (o *routing) LogValue() slog.Value { return slog.StringValue(marshalled(o)) }
