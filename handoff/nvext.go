package handoff

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/router"
)

// wantsNvext reports whether the client requested an nvext object.
func (r *request) wantsNvext() bool {
	x := &r.Call.Request.Nvext
	return x.Wants("worker_id") || x.Wants("timing") || x.Wants("routing")
}

// Nvext builds the nvext object of the answer.
func (r *request) Nvext(t *decode.Transcript) []byte {
	var out struct {
		WorkerID *workerID `json:"worker_id,omitempty"`
		Timing   *Timings  `json:"timing,omitempty"`
		Routing  *Routing  `json:"routing,omitempty"`
	}
	x := &r.Call.Request.Nvext
	if x.Wants("worker_id") {
		out.WorkerID = &workerID{Decode: r.Decode.Worker}
		if r.KV != nil {
			out.WorkerID.Prefill = r.Prefill.Worker
		}
	}
	timing, routed := x.Wants("timing"), x.Wants("routing")
	if timing || routed {
		r.cur.sibling.awaitBriefly(r) // prefill's answer has its times and cached tokens
	}
	if timing {
		timings := r.Timings(t, time.Now())
		out.Timing = &timings
	}
	if routed {
		out.Routing = r.Routing(t)
	}
	raw, _ := json.Marshal(out) // strings and finite numbers cannot fail
	return raw
}

// workerID is nvext.worker_id: the workers that served the request.
type workerID struct {
	Prefill     string `json:"prefill_worker_id,omitempty"`
	PrefillRank *int   `json:"prefill_dp_rank,omitempty"` // of a query only, like DecodeRank
	Decode      string `json:"decode_worker_id"`
	DecodeRank  *int   `json:"decode_dp_rank,omitempty"`
}

// Timings is nvext.timing, in milliseconds with microseconds kept. Transfer is the time from prefill's answer to
// decode's first token: the pull and one decode step. It and TTFT are absent from answers that are not streamed.
type Timings struct {
	Queue    float64 `json:"queue_ms"`
	Prefill  float64 `json:"prefill_ms"`
	Transfer float64 `json:"transfer_ms,omitempty"`
	TTFT     float64 `json:"ttft_ms,omitempty"`
	Total    float64 `json:"total_ms"`
}

// Timings returns the request's times so far; t is what the client was sent.
func (r *Record) Timings(t *decode.Transcript, now time.Time) Timings {
	out := Timings{Queue: ms(r.Spent.Queued), Prefill: ms(r.Spent.Prefill), Total: ms(now.Sub(r.Call.Arrival))}
	if !t.First.IsZero() && r.Call.Request.Stream {
		out.TTFT = ms(t.First.Sub(r.Call.Arrival))
		if r.KV != nil && r.Resumes == 0 {
			out.Transfer = ms(t.First.Sub(r.HandedOver))
		}
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// Routing is nvext.routing: how the workers were chosen, with predictions and results.
type Routing struct {
	Prefill *legRouting `json:"prefill,omitempty"`
	Decode  *legRouting `json:"decode,omitempty"`
	// Predicted is the prompt tokens that the router expected in the cache of the worker that computes the prompt;
	// Actual is what that worker reported, absent if it reported none.
	Predicted int  `json:"predicted_cached_tokens"`
	Actual    *int `json:"actual_cached_tokens,omitempty"`
	// Tokens is the source of the prompt's tokens: request, own, engine, or text where they are unknown.
	Tokens models.Source `json:"prompt_tokens_source"`
	// OneLeg is why there was no prefill leg, absent if there was one. If the hand-off would have been too slow,
	// Transfer is its predicted minimum and Compute the time to compute the prompt again, in milliseconds.
	OneLeg   string  `json:"one_leg,omitempty"`
	Transfer float64 `json:"predicted_transfer_ms,omitempty"`
	Compute  float64 `json:"predicted_compute_ms,omitempty"`
	// Remote is the outcome of the remote index query, absent without one.
	Remote string `json:"remote_index,omitempty"`
}

// legRouting is the choice of one leg's worker.
type legRouting struct {
	Policy     string        `json:"policy"`
	Worker     string        `json:"worker_id"`
	Cost       float64       `json:"cost"`
	Overlap    int           `json:"overlap_blocks"`
	Considered int           `json:"candidates"` // Terms has at most router.MaxTerms of them
	Terms      []router.Term `json:"terms"`
}

// routing returns a choice, nil if it was not explained.
func (c *Choice) routing() *legRouting {
	if len(c.Why.Terms) == 0 {
		return nil
	}
	terms := slices.Clone(c.Why.Terms)
	slices.SortStableFunc(terms, func(a, b router.Term) int { // the chosen worker, then by cost
		switch {
		case a.Worker == c.Worker && b.Worker != c.Worker:
			return -1
		case a.Worker != c.Worker && b.Worker == c.Worker:
			return 1
		}
		return cmp.Compare(a.Cost, b.Cost)
	})
	return &legRouting{c.Why.Policy, c.Worker, c.Why.Cost, c.Why.Overlap, c.Why.Candidates, terms}
}

// Routing returns how the request's workers were chosen, nil if not explained. t is nil if nothing ran.
func (r *Record) Routing(t *decode.Transcript) *Routing {
	out := &Routing{Prefill: r.Prefill.routing(), Decode: r.Decode.routing(), Tokens: r.Source, Remote: r.Remote,
		OneLeg: r.Reason, Transfer: ms(r.Price.Transfer), Compute: ms(r.Price.Compute)}
	if out.Prefill == nil && out.Decode == nil {
		return nil
	}
	out.Predicted = r.OverlapTokens
	if actual := r.Found(t); actual >= 0 && t != nil {
		out.Actual = &actual
	}
	return out
}

// String returns one line of JSON, for the log.
func (o *Routing) String() string { return marshalled(o) }
