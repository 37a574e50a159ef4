package engine

import (
	"encoding/json"
	"net/http"

	"github.com/tandem-pd/tandem/internal/openai"
)

// writeWhole waits for all answers and writes them at once.
func (s *Server) writeWhole(w http.ResponseWriter, r *http.Request, c *call) {
	if !s.await(r, c) {
		return
	}
	if failure := c.failure(); failure != nil {
		s.writeError(w, failure)
		return
	}
	writeJSON(w, http.StatusOK, s.dialect.whole(c))
}

// await waits for all answers, and reports whether they are complete. A client that leaves ends what still runs. An
// answer that is complete by then is written all the same, as in vLLM when one turn of its event loop notices both. A
// client that closed only its sending side can still read which blocks are pinned for it.
func (s *Server) await(r *http.Request, c *call) bool {
	var unread []mail
	noticed, stop := s.noticed(r.Context())
	defer stop()
	left := noticed.Done()
	for !c.done() {
		select {
		case <-left:
			s.leave(c) // no output comes after it
			left = nil
		case <-c.box.ready:
		}
		unread = c.box.take(unread)
		for i := range unread {
			ch := &c.choices[unread[i].choice]
			shown := s.read(ch, &unread[i].Output)
			ch.text = append(ch.text, shown.Text...)
			ch.ids = append(ch.ids, shown.IDs...)
		}
		if left == nil && !c.done() {
			return false
		}
	}
	return true
}

// writeStream writes outputs as they come, as server-sent events. The head
// leaves at once, as vLLM's does: a failure after it is an event.
func (s *Server) writeStream(w http.ResponseWriter, r *http.Request, c *call) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	flush := http.NewResponseController(w)
	if s.cfg.Engine != "sglang" { // whose head leaves with the first event
		w.WriteHeader(http.StatusOK)
		_ = flush.Flush() // a client that has gone ends the context
	}
	noticed, stop := s.noticed(r.Context())
	defer stop()

	var unread []mail
	var out []byte
	for !c.done() {
		select {
		case <-noticed.Done():
			return
		case <-c.box.ready:
		}
		out = out[:0]
		unread = c.box.take(unread)
		for i := range unread {
			out = s.appendChunks(out, c, &unread[i])
		}
		if failure := c.failure(); failure != nil {
			if failure.dies {
				panic(http.ErrAbortHandler) // the engine dies: so does the connection
			}
			out = appendJSON(out, s.dialect.failure(failure))
		}
		if c.done() {
			if c.failure() == nil {
				out = s.dialect.appendEnd(out, c)
			}
			out = openai.AppendEvent(out, []byte(openai.Done))
		}
		if _, err := w.Write(out); err != nil {
			if s.cfg.NoticeAfter > 0 {
				<-noticed.Done()
			}
			return
		}
		_ = flush.Flush()
	}
}

// appendChunks takes an output in and appends the events that it makes.
func (s *Server) appendChunks(out []byte, c *call, m *mail) []byte {
	ch := &c.choices[m.choice]
	if ch.finish != "" {
		return out
	}
	shown := s.read(ch, &m.Output)
	if ch.failure != nil || shown.Held {
		return out
	}
	text := ch.behind + shown.Text
	ch.behind = ""
	return s.dialect.appendChunk(out, c, m.choice, text, shown.IDs)
}

// appendJSON appends v as an event.
func appendJSON(out []byte, v any) []byte {
	data, _ := json.Marshal(v) // cannot fail: the types are this file's
	return openai.AppendEvent(out, data)
}

// writeError answers with a failure, as the engine writes it.
func (s *Server) writeError(w http.ResponseWriter, e *apiError) {
	writeJSON(w, e.Code, s.dialect.failure(e))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, _ := json.Marshal(v) // cannot fail: the package's own types
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // a client that has gone needs no answer
}
