// Package decode is the decode leg: it makes the call, relays the token stream and keeps the transcript of what was sent.
// Workers of role both are called from here too.
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
	"github.com/tandem-pd/tandem/internal/lifetime"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/pace"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Room is the decode leg of every model. It is safe for concurrent use.
type Room struct {
	cfg       Config
	roster    *pools.Roster
	transport upstream.Transport
	computing *pace.Limits // of prompts that a worker computes itself

	runs sync.Pool // of *run

	mu   sync.Mutex
	seen map[string]*seen // by worker id
}

// New makes the room.
func New(cfg Config, roster *pools.Roster, transport upstream.Transport) *Room {
	r := &Room{cfg: cfg, roster: roster, transport: transport, computing: pace.NewLimits(), seen: map[string]*seen{}}
	r.runs.New = func() any { return new(run) }
	return r
}

// run is what one call needs while it lasts; they are used again.
type run struct {
	life  lifetime.Context
	watch watch
	tap   tap
}

// end ends a call, whose watch has stopped, and keeps its memory, unless something may still be about to end it.
func (r *Room) end(in *run) {
	if in.life.Close() && in.watch.still {
		in.tap = tap{}
		r.runs.Put(in)
	}
}

// Call is one decode call and how its answer reaches the client.
type Call struct {
	// Lease is the booking of the worker called. Run books the first token and of grown blocks; it stays the caller's
	// to release.
	Lease *router.Lease
	// Leg is the call.
	Leg upstream.Leg
	// Answer is relayed instead of making the call, unless it is nil: prefill gave the whole answer. It has the form
	// that the client wants. The worker is not judged by it.
	Answer []byte
	// Stream says that the client wants events.
	Stream bool
	// Draft keeps what another worker needs to go on with a stream, nil where none could.
	Draft *Draft
	// HideIDs says, of an answer that is not streamed, that its engine was asked for token ids, and its client did not ask.
	HideIDs bool
	// IncludeUsage says that the client asked for a usage event, which then is the last one.
	IncludeUsage bool
	// HideUsage says that the engine was asked for the usage so far in each event, and the client did not ask for it.
	HideUsage bool
	// Choices is how many answers were asked for (n), at least 1.
	Choices int
	// PromptTokens is the prompt's length, MaxTokens that of the longest answer the engine may give, 0 where it is
	// not known. They bound how long it may take.
	PromptTokens, MaxTokens int
	// Memory counts what is held of an answer; nil counts nothing. Large: the client asks for more than text, so that one token may
	// take any number of bytes, and an event as many as an answer.
	Memory openai.Memory
	Large  bool
	// Longest is how many tokens each answer can have at the very most: what the client asked for, or the model's
	// context; 0 where neither is known. A stream that goes on well past it is ended.
	Longest int
	// MayMove is asked, of a stream whose worker an operator clears, whether another worker can take it over now. It is asked
	// again at the next event while it says no. nil never lets it go.
	MayMove func() bool
	// Prompt is called with the prompt's token ids, a JSON array, where the answer shows them; nil where they are not wanted. It keeps
	// no part of them.
	Prompt func(ids []byte)
	// Tools says that tools are offered, so that the engine may show nothing of what it generates for a while.
	Tools bool
	// HandedOff says that the prompt's KV is taken over and not computed here.
	HandedOff bool
	// CachedTokens is prefill's count of cached tokens, which the client gets in place of decode's: a decode worker
	// calls transferred tokens cached. Negative or nil leaves the engine's figure.
	CachedTokens func() int
	// Tail makes the client's nvext object for the last event; nil for none. It is called once, when that event is at
	// hand.
	Tail func(t *Transcript) []byte
	// Gap gets each time between two tokens, for the ITL histogram.
	Gap func(d time.Duration)
	// First is called once, after the first token was booked.
	First func()
	// Leave is called, for a stream from which nothing has come, each time that Patience has passed, on another goroutine. The call
	// ends with its error, if there is one. Without patience, 0, it is not called.
	Leave    func() error
	Patience time.Duration
	// Taken is the time to the answer's first event, once First is called.
	Taken time.Duration

	// Sent is what left for the client, whatever the end, once Run has returned. By value it would lie on the stack for as long
	// as a stream runs.
	Sent Transcript
}

// maxDetailBytes bounds what is kept of an engine's error.
const maxDetailBytes = 64 << 10

// Run makes the call, relays the answer to out and writes call.Sent. The error names the failure, nil at the answer's proper
// end. When Sent was started, the failure comes after the first byte: the caller must not try again as if nothing had been
// sent, and may have another worker go on with the call's Draft.
//
// A worker that is silent for longer than Config allows is left: the call is cut, which frees the engine, and has
// failed with fault.Timeout before the first token and fault.Stalled after it.
func (r *Room) Run(ctx context.Context, call *Call, out Sink) *fault.Error {
	in := r.runs.Get().(*run)
	in.life.Begin(ctx)
	defer r.end(in)
	first := r.begin(in, call, out)
	defer r.exceeded(in, call, first)
	defer in.watch.stop()
	defer func() { call.Sent = in.tap.transcript }()
	stream, err := r.open(&in.life, call)
	if err != nil {
		return r.unopened(call, err)
	}
	call.Leg.Body = nil // it has left
	defer upstream.End(stream)
	if fault.Classify(nil, stream.Status()) != fault.None {
		return reported(call, stream)
	}
	in.watch.src = stream
	in.tap.transcript.Accepted = true
	if call.Stream {
		err = in.tap.stream()
	} else {
		err = in.tap.whole()
	}
	return in.ended(err)
}

// Run's frame lies on the stack for as long as a stream runs. What comes before and after has frames of its own.

// begin sets the call's limits and starts its clock. It returns how long the first token may take.
//
//go:noinline
func (r *Room) begin(in *run, call *Call, out Sink) (first time.Duration) {
	worker := call.Lease.Worker
	known, waits := r.known(worker.ID), prompt{call.PromptTokens, call.HandedOff}
	if call.Answer != nil {
		known, waits.handedOff = &seen{}, true // nothing is learnt of the worker
	}
	if !call.HandedOff { // those booked before it come first
		waits.tokens = cmp.Or(call.Lease.BacklogTokens, call.PromptTokens)
	}
	first = r.first(worker, known, waits)
	limit := r.cfg.limits(known, first, call.MaxTokens, call.Tools)
	limit.patience, limit.leave = call.Patience, call.Leave
	if !call.Stream {
		limit = limits{first: r.cfg.whole(known, first, call.MaxTokens)}
	}
	in.tap = tap{room: r, call: call, out: out, watch: &in.watch, waits: waits, transcript: call.Draft.transcript()}
	in.tap.had = in.tap.transcript.Tokens
	in.watch.begins(r.cfg, known, limit, &in.life)
	return first
}

// exceeded notes that a worker took longer than first to the first token of a prompt that it computed.
func (r *Room) exceeded(in *run, call *Call, first time.Duration) {
	if worker := call.Lease.Worker; !call.HandedOff && errors.Is(context.Cause(&in.life), fault.ErrTimeout) {
		r.computing.Exceeded(worker.Model, r.roster.Snapshot(worker.Model, worker.Role).IDs(), first)
	}
}

// unopened names the failure of a call that got no answer, and takes a worker that refused the connection out of the choice.
func (r *Room) unopened(call *Call, err error) *fault.Error {
	worker := call.Lease.Worker
	e := fault.New(pools.Decode, worker.ID, err, 0)
	if e.Class == fault.Refused {
		r.roster.ReportDown(worker.ID, worker.Incarnation)
	}
	return e
}

// reported names a failure that the engine reported in place of an answer.
//
//go:noinline
func reported(call *Call, stream upstream.Stream) *fault.Error {
	detail, _ := io.ReadAll(io.LimitReader(stream, maxDetailBytes))
	var err error
	status := stream.Status()
	switch said := openai.ReadEngineError(detail); {
	case said.Died:
		err = fault.ErrEngineDied
	case said.Failed, said.NotLoaded:
		err, status = fault.ErrEngine, said.Status
	}
	e := fault.New(pools.Decode, call.Lease.Worker.ID, err, status)
	e.Detail = detail
	return e
}

// ended names why an answer that was relayed until err has failed, nil where it is whole.
//
//go:noinline
func (in *run) ended(err error) *fault.Error {
	t := &in.tap
	t.give()
	if draft := t.call.Draft; draft != nil {
		draft.sent = t.transcript
		if !t.transcript.Began {
			draft.Undo()
		}
	}
	if err == nil {
		return nil
	}
	if in.life.Err() != nil {
		err = context.Cause(&in.life)
	}
	if !t.transcript.Started {
		t.transcript.Events = 0 // they were held back, and go nowhere
	}
	e := fault.New(pools.Decode, t.call.Lease.Worker.ID, err, t.status)
	e.Detail = t.detail
	return e
}

// open makes the call, or opens the answer that is there.
//
//go:noinline
func (r *Room) open(ctx context.Context, call *Call) (upstream.Stream, error) {
	if call.Answer == nil {
		return r.transport.Call(ctx, call.Leg)
	}
	return given{bytes.NewReader(call.Answer)}, nil
}

// given is an answer that needs no call.
type given struct{ *bytes.Reader }

func (given) Status() int         { return http.StatusOK }
func (given) ContentType() string { return "" }
func (given) Close() error        { return nil }

// Move has the worker's streams go on on other workers, those that can, as soon as their calls' MayMove lets them; or, with
// on false, no longer.
func (r *Room) Move(worker string, on bool) { r.known(worker).moves.Store(on) }

// Rate is the speed in tokens a second at which the worker was seen to compute prompts for itself, as one of role
// both does; 0 while unknown.
func (r *Room) Rate(worker string) float64 { return r.computing.PerSecond(worker) }

// Gap is a time that 99 of 100 gaps between the worker's tokens stay below, 0 while too few were seen.
func (r *Room) Gap(worker string) time.Duration { return r.known(worker).gap() }

// Latest is when the latest token of a worker came, up to 100 ms before that; zero for one without.
func (r *Room) Latest(worker string) (at time.Time) {
	if latest := r.known(worker).latest.Load(); latest != nil {
		at = *latest
	}
	return at
}

// Forget drops what is known of workers that are no longer in the roster.
func (r *Room) Forget() {
	gone := func(worker string) bool { _, known := r.roster.Lookup(worker); return !known }
	r.computing.Forget(gone, func(model string) bool {
		return len(r.roster.Snapshot(model, pools.Decode).Members)+len(r.roster.Snapshot(model, pools.Both).Members) == 0
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.seen, func(worker string, _ *seen) bool { return gone(worker) })
}

// first is how long worker may take to the first token of an answer to p.
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

// began takes in that the first token of an answer to p took that long.
func (r *Room) began(worker *pools.Worker, known *seen, p prompt, took time.Duration) {
	if !p.handedOff {
		r.computing.Observe(worker.Model, worker.ID, p.tokens, took)
		return
	}
	known.mu.Lock()
	defer known.mu.Unlock()
	known.taken.Observe(p.tokens, took)
}

// known is what was observed of a worker.
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
