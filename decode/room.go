// Package decode is the decode leg: it calls the worker, relays the token stream and records what was sent. It calls
// workers of role both, too.
package decode

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
)

// Room is the decode leg of every model. It is safe for concurrent use.
type Room struct {
	cfg       Config
	roster    *pools.Roster
	transport http1.Transport
	computing *prefill.Limits // for prompts that a worker computes itself
	fits      *speed.Fits     // of them

	runs http1.Pool[run, *run]

	mu   sync.Mutex
	seen map[string]*seen // by worker id
}

// New returns a room.
func New(cfg Config, roster *pools.Roster, transport http1.Transport) *Room {
	return &Room{cfg: cfg, roster: roster, transport: transport, computing: prefill.NewLimits(),
		fits: speed.NewFits(speed.Prompt()), seen: map[string]*seen{}}
}

// run is the pooled state of one call.
type run struct {
	http1.Lifetime
	watch watch
	tap   tap
}

// Reset implements [http1.Pooled].
func (in *run) Reset() { in.tap = tap{} }

// Client is the request that a call serves. Only Leave runs on another goroutine.
type Client interface {
	// MayResume reports whether the stream of a worker that is being drained can resume elsewhere now. It is called at
	// each event until it returns true.
	MayResume() bool
	// ComputedPrompt receives the prompt's token ids, a JSON array, if the answer has them. It must not retain them.
	ComputedPrompt(ids []byte)
	// CachedTokens returns prefill's count of cached tokens, which replaces decode's: decode counts transferred tokens as
	// cached. Below 0 decode's stays.
	CachedTokens() int
	// Nvext returns the client's nvext object for the last event. It is called once, at that event.
	Nvext(t *Transcript) []byte
	// FirstToken is called once, after the first token is booked.
	FirstToken()
	// NextToken receives each time between two tokens, for the ITL histogram.
	NextToken(gap time.Duration)
	// Leave is called each time Call.Patience passes before the first event. An error ends the call.
	Leave() error
}

// Call is one decode call and how to relay its answer to the client.
type Call struct {
	Client
	// Lease is the booking of the called worker. Run books the first token and growth; the caller releases it.
	Lease *router.Lease
	// Leg is the request to the worker.
	Leg http1.Leg
	// Answer, if not nil, is relayed instead of making the call: prefill gave the whole answer, in the client's
	// format. It does not affect the worker.
	Answer []byte
	// Endpoint is the client's. One that generates nothing has its answer relayed unchanged, but for a rerank's form.
	Endpoint openai.Endpoint
	// Stream reports that the client wants events.
	Stream bool
	// Draft keeps what another worker needs to resume the stream; nil keeps nothing.
	Draft *Draft
	// HideIDs removes token ids from an answer that is not streamed: the gateway requested them, not the client.
	HideIDs bool
	// IncludeUsage reports that the client requested a final usage event.
	IncludeUsage bool
	// HideUsage removes the running usage that the gateway requested and the client did not.
	HideUsage bool
	// Choices is the number of answers (n), at least 1.
	Choices int
	// PromptTokens is the prompt's length, MaxTokens that of the longest answer the engine may give; 0 if unknown.
	// They bound the call's time.
	PromptTokens, MaxTokens int
	// Memory accounts for held parts of an answer; nil does not count. Large reports that the client wants more than
	// text, so a token or event may have any number of bytes.
	Memory openai.Memory
	Large  bool
	// Longest is an upper bound of each answer's tokens: the client's limit or the model's context; 0 if unknown. A
	// stream well past it is ended.
	Longest int
	// Tools reports that tools are offered, so the engine may be silent for a while.
	Tools bool
	// HandedOff reports that the prompt's KV is taken over, not computed.
	HandedOff bool
	// HasNvext reports that the client requested an nvext object.
	HasNvext bool
	// Patience is the interval of Leave; 0 if the call must not be left.
	Patience time.Duration
	// Taken is the time to the first event, set when FirstToken is called.
	Taken time.Duration

	// Sent is what was sent to the client, set when Run returns. By value it would take stack while a stream runs.
	Sent Transcript
}

// maxDetailBytes bounds the stored part of an engine's error.
const maxDetailBytes = 64 << 10

// Run makes the call, relays the answer to out and writes call.Sent. The error names the failure, nil after a
// complete answer. If Sent.Started is set, the caller must not retry from the start, but another worker may resume
// the call's Draft.
//
// A call that exceeds its silence limit is cut, which frees the engine, and fails with fault.Timeout before the first
// token and fault.Stalled after it.
func (r *Room) Run(ctx context.Context, call *Call, out http1.Sink) *fault.Error {
	in := r.runs.Take()
	in.Begin(ctx)
	defer in.Close()
	first := r.begin(in, call, out)
	defer r.exceeded(in, call, first)
	defer in.watch.stop()
	defer func() { call.Sent = in.tap.transcript }()
	stream, err := r.open(in, call)
	if err != nil {
		return r.unopened(call, err)
	}
	call.Leg.Body = nil // it was sent
	defer http1.End(stream)
	if fault.Classify(nil, stream.Status()) != fault.None {
		return reported(call, stream)
	}
	in.watch.src = stream
	in.tap.transcript.Accepted = true
	switch {
	case !call.Endpoint.Generates():
		err = in.tap.relay(stream.ContentType())
	case call.Stream:
		err = in.tap.stream()
	default:
		err = in.tap.whole()
	}
	return in.ended(err)
}

// Run's frame stays on the stack while a stream runs. What comes before and after has frames of its own.

// begin sets the call's limits and starts its clock. It returns the limit to the first token.
//
//go:noinline
func (r *Room) begin(in *run, call *Call, out http1.Sink) (first time.Duration) {
	worker := call.Lease.Worker
	known, waits := r.known(worker.ID), prompt{call.PromptTokens, call.HandedOff}
	if call.Answer != nil {
		known, waits.handedOff = &seen{}, true // nothing is learned about the worker
	}
	if !call.HandedOff { // tokens booked before it come first
		waits.tokens = cmp.Or(call.Lease.BacklogTokens, call.PromptTokens)
	}
	first = r.first(worker, known, waits)
	limit := r.cfg.limits(known, first, call.MaxTokens, call.Tools)
	limit.patience, limit.leave = call.Patience, call.Client
	if !call.Stream {
		limit = limits{first: r.cfg.whole(known, first, call.MaxTokens)}
	}
	in.tap = tap{room: r, call: call, Sink: out, watch: &in.watch, waits: waits, transcript: call.Draft.transcript()}
	in.tap.had = in.tap.transcript.Tokens
	in.watch.arm(r.cfg, known, limit, &in.Lifetime)
	return first
}

// exceeded records that a worker took longer than first to the first token of a prompt it computed.
func (r *Room) exceeded(in *run, call *Call, first time.Duration) {
	if worker := call.Lease.Worker; !call.HandedOff && errors.Is(context.Cause(in), fault.ErrTimeout) {
		r.computing.Exceeded(worker.Model, r.roster.Snapshot(worker.Model, worker.Role).IDs(), first)
	}
}

// unopened returns the failure of a call without an answer, and reports a worker that refused the connection as down.
func (r *Room) unopened(call *Call, err error) *fault.Error {
	worker := call.Lease.Worker
	e := fault.New(pools.Decode, worker.ID, err, 0)
	if e.Class == fault.Refused {
		r.roster.ReportDown(worker.ID, worker.Incarnation)
	}
	return e
}

// reported returns the failure that the engine reported instead of an answer.
//
//go:noinline
func reported(call *Call, stream http1.Stream) *fault.Error {
	detail, _ := io.ReadAll(io.LimitReader(stream, maxDetailBytes))
	status := stream.Status()
	if !call.Endpoint.Generates() && lacksEndpoint(status, openai.ReadEngineError(detail).Message) {
		return &fault.Error{Class: fault.Rejected, Leg: pools.Decode, Worker: call.Lease.Worker.ID, Status: status,
			Err: openai.NotServed(call.Endpoint)}
	}
	return fault.Reported(pools.Decode, call.Lease.Worker.ID, nil, status, detail)
}

// ended returns the failure of a relayed answer, nil if it is complete.
//
//go:noinline
func (in *run) ended(err error) *fault.Error {
	t := &in.tap
	t.give()
	if draft := t.call.Draft; draft != nil {
		draft.sent = t.transcript
		if !t.transcript.HasToken {
			draft.Undo()
		}
	}
	if err == nil {
		return nil
	}
	if in.Err() != nil {
		err = context.Cause(in)
	}
	if !t.transcript.Started {
		t.transcript.Events = 0 // they were held back and not sent
	}
	e := fault.New(pools.Decode, t.call.Lease.Worker.ID, err, t.status)
	e.Detail = t.detail
	return e
}

// open makes the call, or opens prefill's answer.
//
//go:noinline
func (r *Room) open(ctx context.Context, call *Call) (http1.Stream, error) {
	if call.Answer == nil {
		return r.transport.Call(ctx, call.Leg)
	}
	return prefilled{bytes.NewReader(call.Answer)}, nil
}

// prefilled is an answer that prefill gave: no call is made.
type prefilled struct{ *bytes.Reader }

func (prefilled) Status() int         { return http.StatusOK }
func (prefilled) ContentType() string { return "" }
func (prefilled) Close() error        { return nil }

// ResumeElsewhere sets whether the worker's streams resume on other workers, each as soon as its request's MayResume
// allows.
func (r *Room) ResumeElsewhere(worker string, on bool) { r.known(worker).drained.Store(on) }

// Forecast is a [router.Forecast] of workers that compute the prompts of their answers.
func (r *Room) Forecast(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
	return r.fits.Predict(prefill.KindOf(w), w.ID, booked, uncached, cached)
}

// Occupied is as Forecast for how long the prompt keeps the worker from the next one.
func (r *Room) Occupied(w *pools.Worker, _, uncached, cached int) (time.Duration, bool) {
	return r.fits.Occupied(prefill.KindOf(w), w.ID, uncached, cached)
}

// Off returns the share by which the worker's latest prompts were off their forecast, 0 while unknown.
func (r *Room) Off(worker string) float64 { return r.fits.Off(worker) }

// Gap returns a time that 99 of 100 gaps between the worker's tokens stay below, 0 if unknown.
func (r *Room) Gap(worker string) time.Duration { return r.known(worker).gap() }

// Latest returns when the worker's latest token arrived, up to 100 ms early; zero for none.
func (r *Room) Latest(worker string) (at time.Time) {
	if latest := r.known(worker).latest.Load(); latest != nil {
		at = *latest
	}
	return at
}

// Forget drops the observations of workers that left the roster.
func (r *Room) Forget() {
	gone := func(worker string) bool { _, known := r.roster.Lookup(worker); return !known }
	r.fits.Forget(gone)
	r.computing.Forget(gone, func(model string) bool {
		return len(r.roster.Snapshot(model, pools.Decode).Members)+len(r.roster.Snapshot(model, pools.Both).Members) == 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.seen, func(worker string, _ *seen) bool { return gone(worker) })
}

// first returns the limit to the first token of an answer to p.
func (r *Room) first(worker *pools.Worker, known *seen, p prompt) time.Duration {
	switch {
	case r.cfg.FirstTokenTimeout > 0:
		return r.cfg.FirstTokenTimeout
	case p.handedOff:
		known.mu.Lock()
		defer known.mu.Unlock()
		return known.taken.Limit(p.tokens)
	}
	return r.computing.For(worker.Model, worker.ID, r.roster.Snapshot(worker.Model, worker.Role).IDs(), p.tokens)
}

// observe records how long the first token of an answer to p took, whose booking is lease.
func (r *Room) observe(lease *router.Lease, known *seen, p prompt, took time.Duration) {
	if worker := lease.Worker; !p.handedOff {
		r.computing.Observe(worker.Model, worker.ID, p.tokens, took)
		prefill.Learn(r.fits, lease, -1, took, time.Now())
		return
	}
	known.mu.Lock()
	defer known.mu.Unlock()
	known.taken.Observe(p.tokens, took)
}

func (r *Room) known(worker string) *seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.seen[worker]
	if known == nil {
		known = &seen{}
		r.seen[worker] = known
	}
	return known
}
