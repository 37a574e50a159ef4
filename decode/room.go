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

	mu   sync.Mutex
	seen map[string]*seen // by worker id
}

// New makes the room.
func New(cfg Config, roster *pools.Roster, transport upstream.Transport) *Room {
	return &Room{cfg: cfg, roster: roster, transport: transport, computing: pace.NewLimits(), seen: map[string]*seen{}}
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
	// IncludeUsage says that the client asked for a usage event, which then is the last one.
	IncludeUsage bool
	// Choices is how many answers were asked for (n), at least 1.
	Choices int
	// PromptTokens is the prompt's length, MaxTokens that of the longest answer the engine may give, 0 where it is
	// not known. They bound how long it may take.
	PromptTokens, MaxTokens int
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
}

// maxAnswerBytes bounds an answer that is not streamed. Where its length in tokens is known, so do answerBytes for
// the whole and tokenBytes for each token, echoed ones too: a token with its twenty alternatives is about 3 KB.
const (
	maxAnswerBytes = 256 << 20
	answerBytes    = 4 << 20
	tokenBytes     = 64 << 10
)

// maxDetailBytes bounds what is kept of an engine's error.
const maxDetailBytes = 64 << 10

// Run makes the call and relays the answer to out. The transcript says what left for the client, whatever the end;
// the error names the failure, nil at the answer's proper end. When the transcript was started, the failure comes
// after the first byte: the caller must not try again as if nothing had been sent, and may have another worker go on with
// the call's Draft.
//
// A worker that is silent for longer than Config allows is left: the call is cut, which frees the engine, and has
// failed with fault.Timeout before the first token and fault.Stalled after it.
func (r *Room) Run(ctx context.Context, call *Call, out Sink) (Transcript, *fault.Error) {
	worker := call.Lease.Worker
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	known, waits := r.known(worker.ID), prompt{call.PromptTokens, call.HandedOff}
	if call.Answer != nil {
		known, waits.handedOff = &seen{}, true // nothing is learnt of the worker
	}
	if !call.HandedOff { // those booked before it come first
		waits.tokens = cmp.Or(call.Lease.BacklogTokens, call.PromptTokens)
	}
	first := r.first(worker, known, waits)
	limit := r.cfg.limits(known, first, call.MaxTokens, call.Tools)
	if !call.Stream {
		limit = limits{first: r.cfg.whole(known, first, call.MaxTokens)}
	}
	defer func() {
		if !call.HandedOff && errors.Is(context.Cause(ctx), fault.ErrTimeout) {
			r.computing.Exceeded(worker.Model, r.roster.Snapshot(worker.Model, worker.Role).IDs(), first)
		}
	}()
	w := newWatch(r.cfg, known, limit, cancel)
	defer w.stop()
	stream, err := r.open(ctx, call)
	if err != nil {
		e := fault.New(pools.Decode, worker.ID, err, 0)
		if e.Class == fault.Refused {
			r.roster.ReportDown(worker.ID, worker.Incarnation)
		}
		return call.Draft.transcript(), e
	}
	call.Leg.Body = nil // it has left
	defer stream.Close()
	if fault.Classify(nil, stream.Status()) != fault.None {
		detail, _ := io.ReadAll(io.LimitReader(stream, maxDetailBytes))
		status := stream.Status()
		switch said := openai.ReadEngineError(detail); {
		case said.Died:
			err = fault.ErrEngineDied
		case said.Failed:
			err, status = fault.ErrEngine, said.Status
		}
		e := fault.New(pools.Decode, worker.ID, err, status)
		e.Detail = detail
		return call.Draft.transcript(), e
	}
	w.src = stream
	t := &tap{room: r, call: call, out: out, watch: w, waits: waits, transcript: call.Draft.transcript()}
	t.transcript.Accepted, t.had = true, t.transcript.Tokens
	if call.Stream {
		err = t.stream()
	} else {
		err = t.whole()
	}
	if call.Draft != nil {
		call.Draft.sent = t.transcript
		if !t.transcript.Began {
			call.Draft.Undo()
		}
	}
	if err == nil {
		return t.transcript, nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if !t.transcript.Started {
		t.transcript.Events = 0 // they were held back, and go nowhere
	}
	e := fault.New(pools.Decode, worker.ID, err, t.status)
	e.Detail = t.detail
	return t.transcript, e
}

// open makes the call, or opens the answer that is there.
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
