package edge

import (
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// ping keeps a silent event stream alive: a line with an unknown field, which readers ignore. A comment breaks the
// benchmarks of vLLM and SGLang, and a blank line openai-go up to 3.42; see TestReadersOutliveTheHeartbeat.
const ping = " \n"

// looks is how many checks per heartbeat interval detect a silent stream.
const looks = 8

// startBeats checks for silent streams while there are calls.
func (s *Server) startBeats() {
	if s.cfg.Heartbeat > 0 && !s.beating.Swap(true) {
		time.AfterFunc(s.cfg.Heartbeat/looks, s.beat)
	}
}

// beat sends a line on every event stream that was silent for the heartbeat's interval.
func (s *Server) beat() {
	running := s.live.All()
	for _, x := range running {
		x.beat()
	}
	s.beating.Store(false)
	if len(running) > 0 {
		s.startBeats()
	}
}

// beat checks whether the stream is silent. Before the flow begins it, a ping starts the answer, so that calls in the
// queue or in prefill stay alive. From then on a failure is an event of the stream.
func (x *exchange) beat() {
	if !x.stream || x.active.Swap(false) {
		x.quiet = 0
		return
	}
	if x.quiet++; x.quiet < looks {
		return
	}
	x.quiet = 0
	if !x.conn.Polls() {
		go x.sendPing() // it may wait for the client
		return
	}
	x.sendPing()
}

// sendPing sends a line between two events, unless a write is waiting.
func (x *exchange) sendPing() {
	if !x.mu.TryLock() {
		return
	}
	defer x.mu.Unlock()
	if x.over != nil || x.left.Load() {
		return
	}
	x.start(openai.EventStream)
	if x.events() && !x.out.Pending() && x.betweenEvents() {
		tail, line := x.tail, []byte(ping)
		if x.answer != nil {
			line = x.answer.Ping(nil)
		}
		x.put(line)
		x.tail = tail // whole lines between two events
	}
	_ = x.out.Push() // an error shows at the next write
	x.active.Store(false)
}

// betweenEvents reports whether nothing was written yet or the last event is complete, ending in a blank line.
func (x *exchange) betweenEvents() bool {
	t := string(x.tail[:])
	return t == "\x00\x00\x00\x00" || t[2:] == "\n\n" || t[2:] == "\r\r" || t == "\r\n\r\n"
}

// errorEvent returns e as the last event of a stream, separated from an incomplete event. Between events it starts at
// once: openai-go up to 3.42 fails on blank lines there. The caller holds mu.
func (x *exchange) errorEvent(e *openai.Error) []byte {
	if x.answer != nil {
		return x.answer.Fail(nil, e) // it writes whole events
	}
	event := openai.AppendEvent(nil, e.Append(nil, x.conn.request.id))
	if x.betweenEvents() {
		return event
	}
	return append([]byte("\n\n"), event...)
}

// events reports whether the answer is an event stream. The caller holds mu.
func (x *exchange) events() bool {
	return x.started && strings.HasPrefix(x.contentType, "text/event-stream")
}
