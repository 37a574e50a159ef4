package handoff

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// A request is the client of its decode calls.

// MayResume reports whether r's answer can resume now elsewhere than on a worker that an operator drains. Such resumes
// take places in the retry budget, so that many streams leave one after another.
func (r *request) MayResume() bool {
	f, now, from := r.flow, time.Now(), r.leg.Worker
	return r.Resumes < f.cfg.Resume.Limit && r.pins.decode.Worker == "" && r.pins.prefill.Worker == "" &&
		slices.ContainsFunc(f.rooms.Roster.Snapshot(from.Model, from.Role).Members, func(m pools.Member) bool {
			return m.Worker.ID != from.ID && m.Eligible(now) && !slices.Contains(r.tried, m.Worker.ID)
		}) && f.mayRetry(r)
}

// ComputedPrompt compares the prompt that decode computed with r's tokens.
func (r *request) ComputedPrompt(ids []byte) {
	if r.computesAndShows() && !r.shown {
		r.shown = true
		r.flow.compareTokens(r.prompt, r.leg.Worker, &openai.ChunkInfo{PromptIDs: ids})
	}
}

// CachedTokens returns the cached-token count for the client. It waits a moment for prefill's, which may run in parallel.
func (r *request) CachedTokens() int {
	r.cur.sibling.awaitBriefly(r)
	return r.cachedTokens()
}

// FirstToken records decode's first token, which proves the worker: a long answer must not keep a circuit half-open.
// A later failure still counts.
func (r *request) FirstToken() {
	f, m := r.flow, r.cur
	if !m.sibling.begin(r) {
		return
	}
	f.links.arrived(r)
	others := r.endDisputes(&f.links)
	if !m.fromPrefill {
		r.d.Done(nil)
		bindSession(r.d.Lease, nil)
		r.cleared(m.worker, others)
	}
	f.endRetries(r) // a long answer must not block other retries
	r.stopWaiting()
	r.leg.First = time.Now()
	f.observer.FirstToken(&r.Record, r.leg)
	f.Wake(r.Call.Request.Model)
	m.releaseBodies()
}

// NextToken passes on a time between tokens.
func (r *request) NextToken(gap time.Duration) {
	if r.onToken != nil {
		r.onToken(gap)
	}
}

// Leave returns the error that ends decode's call because its KV comes too slowly, nil to keep waiting.
func (r *request) Leave() error { return r.flow.links.leave(r.flow, r) }
