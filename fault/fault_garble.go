package fault

import "github.com/tandem-pd/tandem/internal/http1"

func init() {
	register(Registered{
		Name: "garble",
		Help: "after after_events events what the worker says is no JSON any more, for an answer that is no stream from its first bytes on",
		uses: []string{"after_events"},
		answer: func(c *injected, s http1.Stream) (http1.Stream, error) {
			return &garbled{Stream: s, meter: newMeter(s, c.rule.AfterEvents)}, nil
		},
	})
}

// garbled is a stream without brackets past its meter. It breaks an answer's JSON and keeps its length, lines and text:
// no gateway can detect a wrong word.
type garbled struct {
	http1.Stream
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
