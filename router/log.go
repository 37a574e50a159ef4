package router

import (
	"context"
	"log/slog"

	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

// logTo returns c with hooks that log each candidate's formula (debug) and the mode that auto chooses. They also log
// ranks whose KV events disagree with reported cache hits.
func (c Config) logTo(log *slog.Logger) Config {
	if log.Enabled(context.Background(), slog.LevelDebug) {
		c.OnChoice = func(p *pools.Pool, req *Request, terms []Term) {
			for _, t := range terms {
				log.Debug(t.String(), "model", p.Model, "role", string(p.Role),
					"request", req.ID, "attempt", req.Attempt, "pool", p.Name(), "rank", t.Rank)
			}
		}
	}
	c.OnMode = func(p *pools.Pool, m Mode) {
		log.Info("router mode chosen", "model", p.Model, "role", string(p.Role), "mode", m.Policy, "reason", m.Reason)
	}
	c.OnMarking = func(m overlap.Marking) {
		log := log.With("model", m.Worker.Model, "role", string(m.Worker.Role), "worker", m.Worker.ID, "rank", m.Rank,
			"wrong", m.Wrong, "samples", m.Samples)
		if m.Marked {
			log.Warn("KV events disagree with reported cache hits; predicting the worker's cache until they agree", "last", m.Last.String())
			return
		}
		log.Info("KV events agree with reported cache hits again")
	}
	return c
}
