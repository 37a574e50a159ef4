package stack

import (
	"slices"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// Thresholds lists the busy thresholds of each model.
func (g *Gateway) Thresholds() []edge.BusyThreshold {
	var all []edge.BusyThreshold
	for _, model := range g.Roster.Models() {
		t := g.routers.Thresholds(model)
		b := edge.BusyThreshold{Model: model}
		if t.DecodeBlocks > 0 {
			b.DecodeBlocks = &t.DecodeBlocks
		}
		if t.PrefillTokens > 0 {
			b.PrefillTokens = &t.PrefillTokens
		}
		all = append(all, b)
	}
	return all
}

// SetThreshold applies and persists a model's busy thresholds. Those of the settings need no persistence.
func (g *Gateway) SetThreshold(b edge.BusyThreshold) (replica.Storage, *openai.Error) {
	if !slices.Contains(g.Roster.Models(), b.Model) {
		return replica.NotStored, openai.NotFoundModel(b.Model)
	}
	var t router.Thresholds
	if b.DecodeBlocks != nil {
		t.DecodeBlocks = *b.DecodeBlocks
	}
	if b.PrefillTokens != nil {
		t.PrefillTokens = *b.PrefillTokens
	}
	if err := g.routers.SetThresholds(b.Model, t); err != nil {
		return replica.NotStored, openai.BadRequest("", "%s", err.Error())
	}
	g.Flow.Wake(b.Model)
	if t == g.routers.Configured() {
		return g.keep(thresholdsOf+b.Model, nil), nil
	}
	return g.keep(thresholdsOf+b.Model, keptThresholds{t.DecodeBlocks, t.PrefillTokens, g.sign()}), nil
}
