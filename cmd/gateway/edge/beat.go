package edge

import (
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// ping shows a silent event stream to be alive: a line of a field that there is not, which readers ignore. A comment fails the
// benchmarks of vLLM and SGLang, and a blank line openai-go up to 3.42; see TestReadersOutliveTheHeartbeat.
const ping = " \n"

// looks is how often the heartbeat looks at a stream before it calls it silent.
const looks = 8

// startBeats has silent streams looked for while there are calls.
func (s *Server) startBeats() {
	if s.cfg.Heartbeat > 0 && !s.beating.Swap(true) {
		time.AfterFunc(s.cfg.Heartbeat/looks, s.beat)
	}
}

// beat sends a line on every event stream that has been silent for the time of a heartbeat.
func (s *Server) beat() {
	running := s.live.all()
	for _, x := range running {
		x.beat()
	}
	s.beating.Store(false)
	if len(running) > 0 {
		s.startBeats()
	}
}

// beat looks whether the stream is silent. One that the flow has not begun begins with a line: what waits in the
// queue or for its prefill is kept alive too. From there on a failure is an event of the stream.
func (x *exchange) beat() {
	if !x.stream || x.active.Swap(false) {
		x.quiet = 0
		return
	}
	if x.quiet++; x.quiet < looks {
		return
	}
	x.quiet = 0
	if x.conn.socket == nil {
		go x.sendPing() // which may wait for the client
		return
	}
	x.sendPing()
}

// sendPing sends a line between two events, unless a write waits already.
func (x *exchange) sendPing() {
	if !x.mu.TryLock() {
		return
	}
	defer x.mu.Unlock()
	if x.over != nil || x.left.Load() {
		return
	}
	x.start(openai.EventStream)
	if x.events() && x.sent == 0 && x.betweenEvents() {
		tail := x.tail
		_ = x.queue([]byte(ping))
		x.tail = tail // a whole line between two events
	}
	_ = x.push() // what fails shows at the next write
	x.active.Store(false)
}

// betweenEvents reports whether nothing was written yet or the last event is complete, that is, ends in a blank line.
func (x *exchange) betweenEvents() bool {
	t := string(x.tail[:])
	return t == "\x00\x00\x00\x00" || t[2:] == "\n\n" || t[2:] == "\r\r" || t == "\r\n\r\n"
}

// errorEvent is e as the last event of a stream, set off from the half event that may stand before it. Between events
// it begins at once: openai-go up to 3.42 fails on blank lines there. The caller holds mu.
func (x *exchange) errorEvent(e *openai.Error) []byte {
	event := openai.AppendEvent(nil, e.Append(nil, x.conn.request.id))
	if x.betweenEvents() {
		return event
	}
	return append([]byte("\n\n"), event...)
}

// events reports whether the answer is an event stream. The caller holds mu.
func (x *exchange) events() bool { return x.started && isEventStream(x.contentType) }

func isEventStream(contentType string) bool {
	return strings.HasPrefix(contentType, "text/event-stream")
}
