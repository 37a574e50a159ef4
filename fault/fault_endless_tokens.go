package fault

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name:  "endless_tokens",
		Help:  "after after_events events, at least 2, the last of them comes again and again and the stream never ends; an answer that is no stream is spared",
		Kinds: []upstream.Kind{upstream.Decode},
		Uses:  []string{"after_events"},
		New:   func(r Rule) (Fault, error) { return endlessTokens{after: max(2, r.AfterEvents)}, nil },
	})
}

// endlessTokens is an engine that does not stop: it has lost max_tokens and its end
// of text.
type endlessTokens struct{ after int }

func (f endlessTokens) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, _ *rand.Rand) (upstream.Stream, error) {
	s, err := next.Call(ctx, leg)
	if err != nil || !strings.HasPrefix(s.ContentType(), "text/event-stream") {
		return s, err
	}
	return &endless{Stream: s, meter: newMeter(s, f.after), ended: func() error {
		if ctx.Err() != nil {
			return broken(leg, upstream.OpBody, context.Cause(ctx))
		}
		return nil
	}}, nil
}

// endless is a stream whose last event before the cut repeats.
type endless struct {
	upstream.Stream
	meter
	ended func() error

	passed []byte // of the worker's stream; from the cut on, the event that repeats
	at     int    // in that event
}

// Read passes the events before the cut on, and then repeats the last of them.
func (e *endless) Read(p []byte) (int, error) {
	if e.left > 0 {
		n, err := e.Stream.Read(p)
		n = e.take(p[:n])
		e.passed = append(e.passed, p[:n]...)
		if e.left > 0 {
			return n, err
		}
		e.passed = lastEvent(e.passed)
		return n, nil
	}
	if err := e.ended(); err != nil {
		return 0, err
	}
	n := 0
	for n < len(p) {
		k := copy(p[n:], e.passed[e.at:])
		n, e.at = n+k, (e.at+k)%len(e.passed)
	}
	return n, nil
}

// lastEvent is the last event of a stream that ends with one.
func lastEvent(stream []byte) []byte {
	stream = bytes.TrimRight(bytes.ReplaceAll(stream, []byte("\r"), nil), "\n")
	return append(bytes.Clone(stream[bytes.LastIndex(stream, []byte("\n\n"))+1:]), "\n\n"...)
}
