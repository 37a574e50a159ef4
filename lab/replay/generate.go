package replay

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Generator makes a workload up: requests of one size that arrive as a Poisson process.
type Generator struct {
	// Rate is the mean number of requests a second.
	Rate float64
	// InputTokens and OutputTokens are the size of each.
	InputTokens, OutputTokens int
	// SharedPrefix is the share of each prompt, from its beginning, that all
	// have in common: 0 to 1. At 1 all prompts are the same.
	SharedPrefix float64
	// Requests and Duration end the workload, whichever is first; 0 is no limit, and one must be set.
	Requests int
	Duration time.Duration
	// Seed makes the arrivals.
	Seed uint64
}

// maxRequests bounds a made-up workload.
const maxRequests = 10_000_000

// Validate returns the mistakes in the settings.
func (g Generator) Validate() error {
	switch {
	case !(g.Rate > 0) || math.IsInf(g.Rate, 0):
		return fmt.Errorf("a rate of %v requests a second", g.Rate)
	case g.InputTokens < 1 || g.InputTokens > maxTokens || g.OutputTokens < 1 || g.OutputTokens > maxTokens:
		return fmt.Errorf("prompts of %d and answers of %d tokens", g.InputTokens, g.OutputTokens)
	case !(g.SharedPrefix >= 0 && g.SharedPrefix <= 1):
		return fmt.Errorf("a shared prefix of %v of the prompt, which is not between 0 and 1", g.SharedPrefix)
	case g.Requests < 0 || g.Duration < 0:
		return fmt.Errorf("%d requests in %v", g.Requests, g.Duration)
	case g.Requests == 0 && g.Duration == 0:
		return errors.New("neither a number of requests nor a duration: it would never end")
	case g.Requests > maxRequests || g.Requests == 0 && g.Rate*g.Duration.Seconds() > maxRequests/2:
		return fmt.Errorf("more than %d requests", maxRequests)
	}
	return nil
}

// Workload makes the requests. The same settings make the same ones.
func (g Generator) Workload() (*Workload, error) {
	if err := g.Validate(); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	rng := rand.New(rand.NewPCG(g.Seed, mix(g.Seed)))
	shared := int(math.Round(g.SharedPrefix * float64(g.InputTokens)))
	w := &Workload{Name: fmt.Sprintf("Poisson, %v req/s, %s tokens in (%s shared), %s out",
		g.Rate, Number(float64(g.InputTokens)), Number(float64(shared)), Number(float64(g.OutputTokens)))}
	at := 0.0 // seconds
	for g.Requests == 0 || len(w.Requests) < g.Requests {
		at += rng.ExpFloat64() / g.Rate
		if g.Duration > 0 && at >= g.Duration.Seconds() {
			break
		}
		r := Request{Index: len(w.Requests), At: time.Duration(at * 1e9), OutputTokens: g.OutputTokens}
		if shared > 0 {
			r.Spans = append(r.Spans, Span{ID: 0, Tokens: shared})
		}
		if own := g.InputTokens - shared; own > 0 {
			r.Spans = append(r.Spans, Span{ID: ownSpans | uint64(r.Index), Tokens: own})
		}
		w.Requests = append(w.Requests, r)
	}
	if len(w.Requests) == 0 {
		return nil, fmt.Errorf("replay: at %v requests a second none arrives within %v", g.Rate, g.Duration)
	}
	return w, nil
}
