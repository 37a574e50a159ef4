// Package decode is the decode leg: it holds the KV routers that choose a
// worker for its load, makes the call, relays the token stream and keeps the
// transcript of what was sent. Workers of role both are served from here too,
// with one leg and a router of their own.
package decode

import (
	"context"
	"io"
	"time"

	"github.com/tandem-pd/tandem/fault"
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
	roster    *pools.Roster
	routers   *router.Set
	transport upstream.Transport
	breakers  *fault.Breakers
}

// New makes the room. routers gives each model's decode pool, and its pool of
// role both, a router of its own; nil breakers let every call through.
func New(roster *pools.Roster, routers *router.Set, transport upstream.Transport, breakers *fault.Breakers) *Room {
	return &Room{roster: roster, routers: routers, transport: transport, breakers: breakers}
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

// maxAnswerBytes bounds an answer that is not streamed.
const maxAnswerBytes = 256 << 20

// Run makes the call and relays the answer to out. The transcript says what
// left for the client, whatever the end; the error names the failure, nil at
// the answer's proper end. When the transcript was started, the failure comes
// after the first byte and the caller must not try again as if nothing had
// been sent.
func (r *Room) Run(ctx context.Context, call Call, out Sink) (Transcript, *fault.Error) {
	worker := call.Lease.Worker
	done, err := r.breakers.Allow(worker.ID, worker.Incarnation, fault.Decode)
	if err != nil {
		done = func(fault.Class) {} // every circuit is open, or the choice would not be this: an uncounted try
	}
	// A first token proves the worker: a long answer must not hold a half-open
	// circuit for as long as it lasts. A failure after it still counts.
	first := call.First
	call.First = func() {
		done(fault.None)
		if first != nil {
			first()
		}
	}
	transcript, failed := r.call(ctx, call, out)
	class := fault.None
	if failed != nil {
		class = failed.Class
	}
	done(class)
	return transcript, failed
}

func (r *Room) call(ctx context.Context, call Call, out Sink) (Transcript, *fault.Error) {
	worker := call.Lease.Worker
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
		e := fault.New(fault.Decode, worker.ID, nil, stream.Status())
		e.Detail, _ = io.ReadAll(io.LimitReader(stream, 64<<10))
		return newTranscript(), e
	}
	t := &tap{call: &call, out: out, transcript: newTranscript()}
	t.transcript.Accepted = true
	if call.Stream {
		err = t.stream(stream)
	} else {
		err = t.whole(stream)
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
	e := fault.New(fault.Decode, worker.ID, err, 0)
	e.Detail = t.detail
	return t.transcript, e
}
