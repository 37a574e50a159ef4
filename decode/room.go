// Package decode is the decode leg: it holds the KV routers that choose a
// worker for its load, makes the call, relays the token stream and keeps the
// transcript of what was sent. Workers of role both are served from here too,
// with one leg and a router of their own.
package decode

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Sink takes the answer for the client.
type Sink interface {
	// Start commits status 200 and the content type, once, before any Write.
	Start(contentType string)
	// Write copies p, waits while the client is slow and fails once it has gone.
	Write(p []byte) error
}

// Room is the decode leg of every model. It is safe for concurrent use.
type Room struct {
	cfg       Config
	roster    *pools.Roster
	routers   *router.Set
	transport upstream.Transport

	mu       sync.Mutex
	paces    map[string]*pace         // by worker id
	patience map[string]time.Duration // by model: the limit while no worker of it has computed a prompt
}

// New makes the room. routers gives each model's decode pool, and its pool of
// role both, a router of its own.
func New(cfg Config, roster *pools.Roster, routers *router.Set, transport upstream.Transport) *Room {
	return &Room{cfg: cfg, roster: roster, routers: routers, transport: transport, paces: map[string]*pace{}, patience: map[string]time.Duration{}}
}

// Pool is the model's pool of that role, decode or both, as it is now.
func (r *Room) Pool(model string, role pools.Role) *pools.Pool {
	return r.roster.Snapshot(model, role)
}

// Router is the router of the model's pool of that role.
func (r *Room) Router(model string, role pools.Role) *router.Router {
	return r.routers.For(model, role)
}

// Call is one decode call and how its answer is to be told to the client.
type Call struct {
	// Lease is the booking of the worker called. Run tells it of the first
	// token and of grown blocks; it stays the caller's to release.
	Lease *router.Lease
	// Leg is the call.
	Leg upstream.Leg
	// Stream says that the client wants events.
	Stream bool
	// IncludeUsage says that the client asked for a usage event, which then
	// is the last one.
	IncludeUsage bool
	// Choices is how many answers were asked for (n), at least 1.
	Choices int
	// PromptTokens is the prompt's length, MaxTokens that of the longest answer
	// the engine may give, 0 where it is not known. They bound how long it may
	// take.
	PromptTokens, MaxTokens int
	// Longest is how many tokens each answer can have at the very most: what the
	// client asked for, or the model's context; 0 where neither is known. A stream
	// that goes on well past it is ended.
	Longest int
	// Tools says that tools are offered, so that the engine may show nothing of
	// what it generates for a while.
	Tools bool
	// HandedOff says that the prompt's KV is taken over and not computed here.
	HandedOff bool
	// Chat says that the engine answers in completions for a client that
	// asked for chat, so that the answer must be reshaped.
	Chat bool
	// CachedTokens is prefill's count of cached tokens, which the client is
	// told in place of decode's: a decode worker calls transferred tokens
	// cached. Negative leaves the engine's figure.
	CachedTokens int
	// Tail makes the client's nvext object for the last event; nil for none.
	// It is called once, when that event is at hand.
	Tail func(t *Transcript) []byte
	// Gap is told each time between two tokens, for the ITL histogram.
	Gap func(d time.Duration)
	// First is told once, after the first token was booked.
	First func()
}

// maxAnswerBytes bounds an answer that is not streamed. Where its length in tokens
// is known, so do answerBytes for the whole and tokenBytes for each token, echoed
// ones too: a token with its twenty alternatives is about 3 KB.
const (
	maxAnswerBytes = 256 << 20
	answerBytes    = 4 << 20
	tokenBytes     = 64 << 10
)

// maxDetailBytes bounds what is kept of an engine's error.
const maxDetailBytes = 64 << 10

// Run makes the call and relays the answer to out. The transcript says what
// left for the client, whatever the end; the error names the failure, nil at
// the answer's proper end. When the transcript was started, the failure comes
// after the first byte and the caller must not try again as if nothing had
// been sent.
//
// A worker that says nothing for longer than Config allows is left: the call is
// cut, which frees the engine, and has failed with fault.Timeout before the
// first token and fault.Stalled after it.
func (r *Room) Run(ctx context.Context, call Call, out Sink) (Transcript, *fault.Error) {
	worker := call.Lease.Worker
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pace, waits := r.pace(worker.ID), prompt{call.PromptTokens, call.HandedOff}
	if !call.HandedOff { // those booked before it come first
		waits.tokens = cmp.Or(call.Lease.BacklogTokens, call.PromptTokens)
	}
	first := r.first(worker, pace, waits)
	limit := r.cfg.limits(pace, first, call.MaxTokens, call.Tools)
	if !call.Stream {
		limit = limits{first: r.cfg.whole(pace, first, call.MaxTokens)}
	}
	defer func() {
		if errors.Is(context.Cause(ctx), fault.ErrTimeout) {
			r.exceeded(worker, waits, first)
		}
	}()
	w := newWatch(r.cfg, pace, limit, cancel)
	defer w.stop()
	stream, err := r.transport.Call(ctx, call.Leg)
	if err != nil {
		e := fault.New(fault.Decode, worker.ID, err, 0)
		if e.Class == fault.Refused {
			r.roster.ReportDown(worker.ID, worker.Incarnation)
		}
		return newTranscript(), e
	}
	defer stream.Close()
	if fault.Classify(nil, stream.Status()) != fault.None {
		detail, _ := io.ReadAll(io.LimitReader(stream, maxDetailBytes))
		if openai.ReadEngineError(detail).Died {
			err = fault.ErrEngineDied
		}
		e := fault.New(fault.Decode, worker.ID, err, stream.Status())
		e.Detail = detail
		return newTranscript(), e
	}
	w.src = stream
	t := &tap{call: &call, out: out, watch: w, waits: waits, transcript: newTranscript()}
	t.transcript.Accepted = true
	if call.Stream {
		err = t.stream()
	} else {
		err = t.whole()
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
	e := fault.New(fault.Decode, worker.ID, err, t.status)
	e.Detail = t.detail
	return t.transcript, e
}

// Gap is the 99th percentile of the silences between the events of the worker's
// streams, 0 while too few were seen.
func (r *Room) Gap(worker string) time.Duration {
	r.mu.Lock()
	known := r.paces[worker]
	r.mu.Unlock()
	if known == nil {
		return 0
	}
	return known.gap()
}

// Rate is the speed in tokens a second at which the worker was seen to compute
// prompts for itself, as one of role both does; 0 while unknown.
func (r *Room) Rate(worker string) float64 {
	r.mu.Lock()
	known := r.paces[worker]
	r.mu.Unlock()
	if known == nil {
		return 0
	}
	known.mu.Lock()
	defer known.mu.Unlock()
	return ratio(known.computed.tokens, known.computed.seconds)
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Forget drops what is known of workers that are no longer in the roster.
func (r *Room) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.paces {
		if _, known := r.roster.Lookup(id); !known {
			delete(r.paces, id)
		}
	}
	for model := range r.patience {
		if len(r.Pool(model, pools.Decode).Members)+len(r.Pool(model, pools.Both).Members) == 0 {
			delete(r.patience, model)
		}
	}
}

// first is how long worker, of that pace, may take to the first token of an answer to
// p.
func (r *Room) first(worker *pools.Worker, w *pace, p prompt) time.Duration {
	if p.handedOff || r.cfg.FirstTokenTimeout > 0 || w.knows(p) {
		return r.cfg.first(w, p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limit, known := r.others(worker, p)
	if !known {
		limit = max(limit, r.patience[worker.Model])
	}
	return limit
}

// others is the longest that another worker of the same pool may take, and whether one
// is known to compute prompts. The caller holds mu.
func (r *Room) others(worker *pools.Worker, p prompt) (limit time.Duration, known bool) {
	limit = leastFirstToken
	for _, m := range r.Pool(worker.Model, worker.Role).Members {
		if w := r.paces[m.Worker.ID]; w != nil && w.knows(p) {
			limit, known = max(limit, r.cfg.first(w, p)), true
		}
	}
	return limit, known
}

// exceeded takes in that a prompt that a worker computes took longer than the limit:
// where no speed is known, the limit may be what keeps it from becoming known.
func (r *Room) exceeded(worker *pools.Worker, p prompt, limit time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.others(worker, p); !known && !p.handedOff {
		r.patience[worker.Model] = max(r.patience[worker.Model], min(2*limit, maxPatience))
	}
}

func (r *Room) pace(worker string) *pace {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.paces[worker]
	if known == nil {
		known = &pace{}
		r.paces[worker] = known
	}
	return known
}
