package fault

import (
	"bytes"
	"context"
	"strings"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

func init() {
	register(Registered{
		Name: "endless_tokens",
		Help: "after after_events events, at least 2, the last of them comes again and again and the stream never ends; " +
			"an answer that is no stream is spared",
		legs: []pools.Role{pools.Decode},
		uses: []string{"after_events"},
		answer: func(c *injected, s http1.Stream) (http1.Stream, error) {
			if !strings.HasPrefix(s.ContentType(), "text/event-stream") {
				return s, nil
			}
			return &endless{Stream: s, meter: newMeter(s, max(2, c.rule.AfterEvents)), call: c}, nil
		},
	})
}

// endless is a stream whose last event before the cut repeats: its engine has lost max_tokens and its end of text.
type endless struct {
	http1.Stream
	meter
	call *injected

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
	if ctx := e.call.ctx; ctx.Err() != nil {
		return 0, e.call.broken(http1.OpBody, context.Cause(ctx))
	}
	n := 0
	for n < len(p) {
		k := copy(p[n:], e.passed[e.at:])
		n, e.at = n+k, (e.at+k)%len(e.passed)
	}
	return n, nil
}

func lastEvent(stream []byte) []byte {
	stream = bytes.TrimRight(bytes.ReplaceAll(stream, []byte("\r"), nil), "\n")
	return append(bytes.Clone(stream[bytes.LastIndex(stream, []byte("\n\n"))+1:]), "\n\n"...)
}
