package simulate

import (
	"cmp"
	"maps"
	"math"
	"time"

	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
)

// forecasting gives every router of a gateway the engines' own model to predict by, or the gateway's own fit.
func (g *gateway) forecasting(configs map[pools.Role]router.Config) map[pools.Role]router.Config {
	r := g.run
	if r.cfg.Learns {
		g.learned = newLearned()
	}
	out := maps.Clone(configs)
	for role, c := range out {
		c.Forecast = r.forecast
		switch {
		case r.cfg.Learns:
			c.Forecast, c.Occupies = g.learned.forecast, g.learned.occupies
		case c.BindsLate():
			c.Forecast, c.Transfer = r.compute, r.transfer
		}
		out[role] = c
	}
	return out
}

// learned is a gateway's fit of the workers' speed from their answers, as in packages prefill and decode.
type learned struct{ fits *speed.Fits }

func newLearned() *learned { return &learned{speed.NewFits(speed.Prompt())} }

// observe records how long the prompt, or the slice, that is booked by lease took.
func (l *learned) observe(lease *router.Lease, cached int, took time.Duration, now time.Time) {
	prefill.Learn(l.fits, lease, cached, took, now)
}

// forecast is a router.Forecast.
func (l *learned) forecast(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
	return l.fits.Predict(prefill.KindOf(w), w.ID, booked, uncached, cached)
}

// occupies is the router's Occupies.
func (l *learned) occupies(w *pools.Worker, _, uncached, cached int) (time.Duration, bool) {
	return l.fits.Occupied(prefill.KindOf(w), w.ID, uncached, cached)
}

// forecast predicts the TTFT by the fit. It adds booked tokens at the linear rate, as their prefixes are unknown, and
// the prompt's own part with attention. If another worker decodes it adds the transfer of the whole prompt. It leaves
// out decode's part.
func (r *run) forecast(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
	cfg := r.machines[r.byWorker[w.ID]].core.Config()
	ms := cfg.Latency.ChunkMillis(uncached, cached) + float64(cfg.Latency.Prefill*float64(booked)/1000)
	if w.Role == pools.Prefill {
		bytes := float64(uncached+cached) * float64(cfg.BytesPerToken)
		ms += float64(bytes/cfg.BandwidthBytesPerSecond*1000) + float64(cfg.TransferSetup)/1e6
	}
	return r.predicted(ms), true
}

// compute is what a prompt takes a worker itself: forecast without the transfer, during which it computes the next one.
func (r *run) compute(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
	cfg := r.machines[r.byWorker[w.ID]].core.Config()
	ms := cfg.Latency.ChunkMillis(uncached, cached) + float64(cfg.Latency.Prefill*float64(booked)/1000)
	return r.predicted(ms), true
}

// computes is a placement.Computes.
func (g *gateway) computes(w *pools.Worker, tokens int) (time.Duration, bool) {
	return g.speeds.forecast(w, 0, tokens, 0)
}

// transfer is what decode takes from a prompt's end to the first token, without what it waits for: the KV's way and a
// step.
func (r *run) transfer(w *pools.Worker, tokens int) time.Duration {
	cfg := r.machines[r.byWorker[w.ID]].core.Config()
	bytes := float64(tokens) * float64(cfg.BytesPerToken)
	ms := float64(bytes/cfg.BandwidthBytesPerSecond*1000) + cfg.Latency.Step(1, tokens, 0).Seconds()*1000
	return cfg.TransferSetup + time.Duration(math.Round(float64(ms*1e6)))
}

// predicted is so many milliseconds, as wrong as the run has predictions.
func (r *run) predicted(ms float64) time.Duration {
	return time.Duration(math.Round(float64(ms * cmp.Or(r.cfg.ForecastScale, 1) * 1e6)))
}
