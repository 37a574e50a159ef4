package fault

import (
	"context"
	"math/rand/v2"

	"github.com/tandem-pd/tandem/internal/upstream"
)

func init() {
	Register(Registered{
		Name: "garble",
		Help: "after after_events events what the worker says is no JSON any more, for an answer that is no stream from its first bytes on",
		Uses: []string{"after_events"},
		New:  func(r Rule) (Fault, error) { return garble{after: r.AfterEvents}, nil },
	})
}

// garble breaks an answer's JSON and keeps its length and lines. It breaks
// structure and never text: no gateway can tell a wrong word from a right one.
type garble struct{ after int }

func (f garble) Call(ctx context.Context, leg upstream.Leg, next upstream.Transport, _ *rand.Rand) (upstream.Stream, error) {
	s, err := next.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	return &garbled{Stream: s, meter: newMeter(s, f.after)}, nil
}

// garbled is a stream in which no bracket survives past its meter.
type garbled struct {
	upstream.Stream
	meter
}

// Read reads and breaks what it read.
func (g *garbled) Read(p []byte) (int, error) {
	n, err := g.Stream.Read(p)
	for i := g.take(p[:n]); i < n; i++ {
		switch p[i] {
		case '{', '}', '[', ']':
			p[i] = '#'
		}
	}
	return n, err
}
