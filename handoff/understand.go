package handoff

import (
	"context"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/router"
)

// understand finds the model, its limits, the client's workers and weights, and the prompt's tokens and hashes. Its
// error is an *openai.Error.
func (f *Flow) understand(ctx context.Context, r *request) error {
	req := r.Call.Request
	if f.rooms.Starting != nil {
		if refused := f.rooms.Starting(); refused != nil {
			return refused
		}
	}
	if all := f.rooms.Roster.Models(); req.Model == "" && len(all) == 1 {
		req.Model = all[0]
	} else if req.Model == "" && len(all) > 1 {
		return openai.BadRequest("model", "model is required where several are served; GET /v1/models lists them")
	}
	req.Model, req.Adapter = f.rooms.Roster.Resolve(req.Model) // workers serve the model under its own name
	var ok bool
	if r.card, ok = models.CardOf(f.rooms.Roster, req.Model); !ok {
		if len(f.rooms.Roster.Models()) == 0 { // clients give up on a 404, and the model may join
			return openai.Unavailable("no_worker", "no worker has joined yet")
		}
		return openai.NotFoundModel(req.Model)
	}
	r.Known, r.BlockSize = true, r.card.BlockSize
	f.observer.Arrived(&r.Record)
	defer f.observer.Understood(&r.Record)
	if err := r.card.CheckIDs(req, f.rooms.Languages.Of(req.Model)); err != nil {
		return err
	}
	if err := f.pin(r); err != nil {
		return err
	}
	r.ask = f.nextAsk(r)
	if !req.Endpoint.Generates() {
		r.ISL, r.ask.ISL = req.InputTokens, req.InputTokens
		return nil
	}
	route := f.placer.Route(f.rooms.Roster.Fleet(req.Model), r.ask, time.Now())
	pool, computes := route.Computes()
	if len(pool.Members) > 0 {
		r.computes = computes
	}
	if err := r.constrain(computes.Cost()); err != nil {
		return err
	}
	defer func() { // the prompt is known
		r.ask.ISL, r.ask.Hashes, r.ask.DecodeHashes, r.ask.Text = r.ISL, r.Hashes, r.decodeHashes, r.ids == nil
	}()
	began := time.Now()
	var err error
	if r.ISL, err = f.tokenize(ctx, r); err != nil {
		return err
	}
	if r.ids == nil {
		var fromStart bool
		r.ISL, fromStart = r.card.Estimate(req)
		if fromStart && r.computes != nil && r.computes.Sources().CanPredict() {
			r.Hashes, r.decodeHashes = r.card.Hashes(req, models.Prompt{})
		}
		return nil
	}
	tokenized := time.Now()
	r.Hashes, r.decodeHashes = r.card.Hashes(req, r.prompt)
	r.Tokenized, r.Spent.Tokenizing, r.Spent.Hashing = true, tokenized.Sub(began), time.Since(tokenized)
	if r.Call.OnPrompt != nil {
		r.Call.OnPrompt(r.ISL)
	}
	return nil
}

// tokenize returns the number of the prompt's tokens, from the best source that has them. Its error is an
// *openai.Error.
func (f *Flow) tokenize(ctx context.Context, r *request) (n int, err error) {
	req, language := r.Call.Request, f.rooms.Languages.Of(r.Call.Request.Model)
	r.prompt, r.Source, err = r.card.Tokens(req, language)
	if r.ids = r.prompt.IDs; err != nil || r.ids != nil {
		return len(r.ids), err
	}
	if r.computes == nil || r.computes.IgnoresOverlap() {
		return 0, nil // no choice depends on the cache, and an engine's time is not free
	}
	asked := f.rooms.Languages.Ask(ctx, req, r.card.Engine, r.ID)
	if asked == nil {
		return 0, nil
	}
	r.Source = models.FromEngine
	r.ids, err = r.card.Fit(req, asked)
	r.prompt = models.Prompt{IDs: r.ids}
	return len(r.ids), err
}

// constrain reads the request's own weights. Its error is an *openai.Error: 400 for a weight of another function than
// cost.
func (r *request) constrain(cost string) error {
	o := r.Call.Request.Nvext.Override
	if o == nil {
		return nil
	}
	r.override = &router.Override{
		OverlapWeight: o.OverlapScoreWeight, OverlapCredit: o.OverlapScoreCredit, PrefillScale: o.PrefillLoadScale,
		SharedMultiplier: o.SharedCacheMultiplier, Temperature: o.RouterTemperature,
		TrackPrefillTokens: o.TrackPrefillTokens, AssumeReuse: o.AssumeKVReuse,
	}
	r.ask.Override = r.override
	for _, c := range []struct {
		name  string
		cost  string
		value *float64
	}{
		{"overlap_score_credit", router.Credited, o.OverlapScoreCredit},
		{"prefill_load_scale", router.Credited, o.PrefillLoadScale},
		{"shared_cache_multiplier", router.Credited, o.SharedCacheMultiplier},
		{"overlap_score_weight", router.Classic, o.OverlapScoreWeight},
	} {
		if c.value != nil && cost != c.cost {
			field := "nvext.router_config_override." + c.name
			return openai.BadRequest(field, "%s is a weight of the cost %q, and this gateway's --router-cost is %s", field, c.cost, cost)
		}
	}
	return nil
}

// askRemote queries the remote index, if any, for the prompt's blocks that workers hold. It runs between hashing and
// booking. A failed query does not fail the request. Retries reuse the first round's result.
func (f *Flow) askRemote(ctx context.Context, r *request) {
	if f.rooms.Remote == nil || r.ids == nil || len(r.Hashes) == 0 {
		return // text is hashed for predictions only
	}
	if r.computes == nil || r.computes.IgnoresOverlap() {
		return
	}
	began := time.Now()
	r.remoteOverlap, r.Remote = f.rooms.Remote(ctx, r.Call.Request.Model, r.card.BlockSize, r.Hashes)
	r.ask.RemoteOverlap = r.remoteOverlap
	r.Spent.Asking = time.Since(began)
}
