package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/router"
)

// Reasons why a request was served without a prefill leg; metric labels.
const (
	reasonAggregated    = "aggregated"         // the pool's workers do both
	reasonChoices       = "n"                  // siblings would share the handed-off blocks
	reasonPromptOnly    = "max_tokens"         // nothing is decoded
	reasonNoPrefill     = "no_prefill_worker"  // none was left to choose
	reasonPrefillFailed = "prefill_failed"     // every other worker had failed
	reasonEngine        = "no_common_protocol" // the pair speaks different protocols
	reasonPrompt        = "prompt_logprobs"    // the prompt's own probabilities cross no hand-off
)

// request is one request's state on its way. It belongs to Serve's goroutine;
// the drain step reads it while that goroutine waits.
type request struct {
	call Call
	id   string // the gateway's own id, which engines see with the attempt's number
	card card

	pins pins // whom the client wants
	// override is the weights that the client wants, nil for the pools'.
	override *router.Override
	ids      []uint32 // the prompt's tokens, nil where unknown
	kept     int      // the most prompt tokens that the engine keeps
	isl      int      // prompt tokens kept, estimated where ids is nil
	hashes   []uint64 // sequence hashes of the full blocks, of text where ids is nil
	// decodeHashes are those in decode's blocks, nil where they are of one size.
	decodeHashes []uint64
	// told is what an index elsewhere says of the prompt, and remote what came of
	// asking it; empty where nobody was asked.
	told   *router.Told
	remote string

	attempt int
	tried   []string // workers that failed this request
	dead    []string // those of them that died under it
	held    held
	d, p    *router.Lease
	dEnd    func(fault.Class) // tells decode's circuit how the call ended
	pEnd    func(fault.Class) // and prefill's
	dMark   mark              // below decode's booking
	pMark   mark              // below prefill's booking
	kvMark  mark              // below the staged KV
	kv      *KV
	taken   bool // decode has the KV: there is nothing to abandon
	reason  string
	first   struct{ p, d string } // for the record: the latest choice, kept after release

	cached  int // prefill's cached tokens, −1 where it did not say
	overlap int // the chosen worker's overlap as the router believed it, in its blocks
	// overlapTokens is the same in tokens.
	overlapTokens int
	sent          decode.Transcript
	series        *modelMetrics // nil until the model is found
	waiting       bool          // counted as having no first token
	spent         struct{ hashing, asking, matching time.Duration }
	queued        time.Duration
	prefilled     time.Duration
	decodeStart   time.Time
	outcome       string
	retrying      bool                      // it has a place in the retry budget
	last          *fault.Error              // why the latest round ended
	why           struct{ p, d router.Why } // how each leg's worker was chosen, for the record
}

func newRequest(call Call, id string) *request {
	return &request{call: call, id: id, cached: -1}
}

// priority is the queue's priority: the header wins over the body.
func (r *request) priority() float64 {
	switch {
	case r.call.Priority != nil:
		return float64(*r.call.Priority)
	case r.call.Request.Nvext.Priority != nil:
		return float64(*r.call.Request.Nvext.Priority)
	}
	return 0
}

// strict is the strict priority: the header wins over the body.
func (r *request) strict() uint32 {
	switch {
	case r.call.StrictPriority != nil:
		return *r.call.StrictPriority
	case r.call.Request.Nvext.StrictPriority != nil:
		return *r.call.Request.Nvext.StrictPriority
	}
	return 0
}

// oneLeg says why this request is decoded without hand-off whoever is there,
// empty when it is not.
func (r *request) oneLeg() string {
	switch {
	case r.call.Request.N > 1:
		return reasonChoices
	case r.call.Request.PromptOnly:
		return reasonPromptOnly
	case showsPrompt(r.call.Request):
		return reasonPrompt
	case r.reason == reasonPrefillFailed:
		return reasonPrefillFailed
	}
	return ""
}

// showsPrompt says whether the client wants the probabilities of the prompt's own
// tokens. A decode worker that takes the prompt's KV over has none, and releases
// of vLLM fail an assertion in its core, which ends the engine. Beside
// prompt_logprobs itself, echo asks for them: with logprobs in a completion, and
// always in a chat, whose top_logprobs is 0 where it is absent (vLLM's
// to_sampling_params).
func showsPrompt(req *openai.Request) bool {
	said := func(field string) bool {
		v, ok := req.Field(field)
		return ok && string(v) != "null"
	}
	echo, _ := req.Field("echo")
	return said("prompt_logprobs") ||
		said("echo") && string(echo) != "false" && (req.Endpoint == openai.Chat || said("logprobs"))
}

// take makes a grant's bookings the request's own.
func (r *request) take(g *grant, wake func()) {
	if g.d != nil {
		r.d = g.d
		r.first.d = g.d.Worker.ID
		r.dMark = r.held.hold(func() { giveBack(g.d, g.dEnd, time.Now()); wake() })
		r.dEnd = g.dEnd
		r.why.d = g.d.Why
	}
	r.reason = g.reason
	if g.p == nil && r.kv == nil && g.d != nil {
		r.believe(g.d) // decode computes the prompt itself
	}
	if g.p != nil {
		r.p = g.p
		r.first.p = g.p.Worker.ID
		r.pMark = r.held.hold(func() { giveBack(g.p, g.pEnd, time.Now()); wake() })
		r.pEnd = g.pEnd
		r.believe(g.p)
		r.why.p = g.p.Why
	}
}

// believe notes how much of the prompt the worker that computes it has cached, as
// the router believes.
func (r *request) believe(l *router.Lease) {
	r.overlap, r.overlapTokens = l.Overlap, l.Overlap*l.Worker.BlockSize
}

// nextAttempt opens a round.
func (r *request) nextAttempt() Attempt {
	r.attempt++
	a := Attempt{
		ID: r.id + "-" + strconv.Itoa(r.attempt), D: r.d.Worker, DRank: r.d.Rank,
		TraceParent: r.call.TraceParent, TraceState: r.call.TraceState, Forward: r.call.Forward,
	}
	if r.p != nil {
		a.P, a.PRank = r.p.Worker, r.p.Rank
	}
	return a
}

// dropPrefill gives prefill's booking up: this round has one leg.
func (r *request) dropPrefill(reason string) {
	r.p.Withdraw()
	r.held.unwind(r.pMark)
	r.p, r.reason = nil, reason
}

// endPrefill ends prefill's booking with its answer, whatever it said.
func (r *request) endPrefill(took time.Duration) {
	r.prefilled += took
	r.held.unwind(r.pMark)
	r.p = nil
}

// holdKV takes responsibility for the blocks that prefill keeps for us.
func (r *request) holdKV(kv KV, said openai.ChunkInfo, abandon func()) {
	r.kv, r.taken = &kv, false
	r.cached = said.CachedTokens
	r.kvMark = r.held.hold(func() {
		if !r.taken {
			abandon()
		}
	})
}

// kvTaken says that decode has pulled the KV.
func (r *request) kvTaken() { r.taken = true }

// prepare arranges what the next round keeps.
func (r *request) prepare(action Action, failed *fault.Error) {
	r.last = failed
	if !slices.Contains(r.tried, failed.Worker) {
		r.tried = append(r.tried, failed.Worker)
	}
	switch action {
	case OtherPrefill: // decode's booking stays
	case LocalPrefill:
		r.reason = reasonPrefillFailed
	case OtherDecode:
		r.keepKV()
	case Again:
		r.prepareAgain()
	}
}

// prepareAgain gives everything back.
func (r *request) prepareAgain() {
	r.held.release()
	r.p, r.d, r.kv, r.cached = nil, nil, nil, -1
	if r.reason != reasonPrefillFailed {
		r.reason = ""
	}
}

// keepKV gives decode's booking back and keeps the KV, which lies above it.
func (r *request) keepKV() {
	if r.kv == nil {
		r.prepareAgain()
		return
	}
	r.held.swap(r.dMark)
	r.d = nil
}

// cachedTokens is what the client is told as cached, −1 to leave decode's
// figure: a decode worker calls every transferred token cached. Of a prefill
// worker that did not say nothing is known to have been.
func (r *request) cachedTokens() int {
	if r.kv == nil {
		return -1
	}
	return max(0, r.cached)
}

// found is how many prompt tokens the worker that computed the prompt had cached, as
// it said; below 0 where it did not say, or nothing ran. t is the decode leg's.
func (r *request) found(t *decode.Transcript) int {
	if r.kv == nil && t != nil && !t.First.IsZero() { // it was computed where it was decoded
		return t.CachedTokens
	}
	return r.cached
}

// compare tells the router what the worker that computed the prompt found cached
// of it, below 0 where it did not say. A later attempt finds what an earlier one
// left behind; several answers add up; an engine that shows the prompt's own
// probabilities computes all of it; and a prompt without tokens was looked up by
// its text. None of these says what the worker's events were worth.
func (r *request) compare(l *router.Lease, cached int) {
	if r.attempt > 1 || r.ids == nil || r.call.Request.N > 1 || hasField(r.call.Request, "prompt_logprobs") || hasField(r.call.Request, "echo") {
		return
	}
	l.Compare(cached)
}

// longestAnswer is how many tokens each answer may have: what the client asked
// for, or the rest of the model's context; 0 where neither is known.
func (r *request) longestAnswer() int {
	switch req := r.call.Request; {
	case req.MaxTokens > 0:
		return req.MaxTokens
	case req.PromptOnly:
		return 1 // vLLM computes a token and does not show it
	}
	return max(0, r.card.contextTokens-r.isl)
}

// mostTokens is how many tokens each answer can have at the very most, 0 where that
// is not known. The prompt's length may be an estimate, and is left out of it.
func (r *request) mostTokens() int {
	if n := r.call.Request.MaxTokens; n > 0 {
		return n
	}
	return r.card.contextTokens
}

// tail makes the nvext object that the client asked for, nil for none.
func (r *request) tail() func(t *decode.Transcript) []byte {
	fields := r.call.Request.Nvext.ExtraFields
	worker, timing := slices.Contains(fields, "worker_id"), slices.Contains(fields, "timing")
	routed := slices.Contains(fields, "routing")
	if !worker && !timing && !routed {
		return nil
	}
	return func(t *decode.Transcript) []byte {
		var out struct {
			WorkerID *workerID `json:"worker_id,omitempty"`
			Timing   *timings  `json:"timing,omitempty"`
			Routing  *routing  `json:"routing,omitempty"`
		}
		if worker {
			out.WorkerID = &workerID{Decode: r.first.d}
			if r.kv != nil {
				out.WorkerID.Prefill = r.first.p
			}
		}
		if timing {
			out.Timing = r.timings(t, time.Now())
		}
		if routed {
			out.Routing = r.routing(t)
		}
		raw, _ := json.Marshal(out) // strings and finite numbers cannot fail
		return raw
	}
}

// workerID is nvext.worker_id: who served the request.
type workerID struct {
	Prefill     string `json:"prefill_worker_id,omitempty"`
	PrefillRank *int   `json:"prefill_dp_rank,omitempty"` // of a query alone, as DecodeRank
	Decode      string `json:"decode_worker_id"`
	DecodeRank  *int   `json:"decode_dp_rank,omitempty"`
}

// timings is nvext.timing, in milliseconds with microseconds kept. Transfer is
// the time from prefill's answer to decode's first token: the pull and one
// decode step.
type timings struct {
	Queue    float64 `json:"queue_ms"`
	Prefill  float64 `json:"prefill_ms"`
	Transfer float64 `json:"transfer_ms"`
	TTFT     float64 `json:"ttft_ms"`
	Total    float64 `json:"total_ms"`
}

func (r *request) timings(t *decode.Transcript, now time.Time) *timings {
	out := &timings{Queue: ms(r.queued), Prefill: ms(r.prefilled), Total: ms(now.Sub(r.call.Arrival))}
	if !t.First.IsZero() {
		out.TTFT = ms(t.First.Sub(r.call.Arrival))
		if r.kv != nil {
			out.Transfer = ms(t.First.Sub(r.decodeStart))
		}
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// refuse is the end of a request that was not admitted.
func (r *request) refuse(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		class := fault.Classify(context.Cause(ctx), 0)
		r.outcome = class.String()
		return context.Cause(ctx)
	}
	told := refusal(err)
	if r.last != nil && errors.Is(err, errNoDecode) {
		told = answerTo(r.last) // everybody was tried: what the last one did says more
	}
	r.outcome = told.Code
	return told
}

// fail is the end of a request whose last round failed: an error to answer
// with, or, after the first byte, an error event that ends the stream without
// its end marker.
func (r *request) fail(failed *fault.Error, out Sink) error {
	r.outcome = failed.Class.String()
	if failed.Class == fault.ClientGone {
		return failed
	}
	told := answerTo(failed)
	if !r.sent.Started {
		return told
	}
	if r.call.Request.Stream {
		_ = out.Write(openai.AppendEvent(nil, told.Append(nil, r.call.ID))) // the client may be gone as well
	}
	return failed
}
