package engine

import (
	"encoding/json"
	"net/http"

	"github.com/tandem-pd/tandem/internal/openai"
)

// answerObject is an answer, or a chunk of one, in either form, with the fields
// that vLLM adds to OpenAI's.
type answerObject struct {
	ID               string          `json:"id"`
	Object           string          `json:"object"`
	Created          int64           `json:"created"`
	Model            string          `json:"model"`
	Choices          []answerChoice  `json:"choices"`
	Usage            *openai.Usage   `json:"usage,omitempty"`
	PromptTokenIDs   []uint32        `json:"prompt_token_ids,omitempty"` // of chats
	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// answerChoice has Text in completions, Message in whole chats and Delta in
// chunks of chats.
type answerChoice struct {
	Index          int                 `json:"index"`
	Text           *string             `json:"text,omitempty"`
	Message        *openai.ChatMessage `json:"message,omitempty"`
	Delta          *openai.ChatDelta   `json:"delta,omitempty"`
	Logprobs       *struct{}           `json:"logprobs"`
	FinishReason   *string             `json:"finish_reason"`
	StopReason     any                 `json:"stop_reason"`
	PromptTokenIDs []uint32            `json:"prompt_token_ids,omitempty"` // of completions
	TokenIDs       []uint32            `json:"token_ids,omitempty"`
}

// writeWhole waits for all answers and writes them at once. A client that leaves ends what still runs; an answer that is
// complete by then is written all the same, as vLLM does when it notices both in one turn of its event loop: a client
// that closed its sending side only can still read which blocks are pinned for it.
func (s *Server) writeWhole(w http.ResponseWriter, r *http.Request, c *call) {
	var unread []mail
	left := r.Context().Done()
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
			text, ids := s.read(ch, &unread[i].Output)
			ch.text = append(ch.text, text...)
			ch.ids = append(ch.ids, ids...)
		}
		if left == nil && !c.done() {
			return
		}
	}
	if failure := c.failure(); failure != nil {
		writeError(w, failure)
		return
	}
	a := s.object(c, c.object)
	a.Usage = c.total()
	for i := range c.choices {
		ch := &c.choices[i]
		a.KVTransferParams = ch.params // there is but one choice when it is set
		text := string(ch.text)
		one := answerChoice{Index: i, FinishReason: &ch.finish, StopReason: ch.reason}
		if c.endpoint == openai.Chat {
			one.Message = &openai.ChatMessage{Role: "assistant", Content: text}
		} else {
			one.Text = &text
		}
		c.showIDs(&a, &one, ch, ch.ids, true)
		a.Choices = append(a.Choices, one)
	}
	writeJSON(w, http.StatusOK, a)
}

// writeStream writes outputs as they come, as server-sent events. The head
// leaves at once, as vLLM's does: a failure after it is an event.
func (s *Server) writeStream(w http.ResponseWriter, r *http.Request, c *call) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush() // a client that has gone ends the context

	var unread []mail
	var out []byte
	for !c.done() {
		select {
		case <-r.Context().Done():
			return
		case <-c.box.ready:
		}
		out = out[:0]
		unread = c.box.take(unread)
		for i := range unread {
			out = s.appendChunks(out, c, &unread[i])
		}
		if failure := c.failure(); failure != nil {
			if failure.Code == http.StatusServiceUnavailable {
				panic(http.ErrAbortHandler) // the engine dies: so does the connection
			}
			out = openai.AppendEvent(out, errorJSON(failure))
		}
		if c.done() {
			if c.usage && c.failure() == nil {
				a := s.object(c, c.chunk)
				a.Usage = c.total()
				out = appendJSON(out, a)
			}
			out = openai.AppendEvent(out, []byte(openai.Done))
		}
		if _, err := w.Write(out); err != nil {
			return
		}
		_ = flush.Flush()
	}
}

// appendChunks appends the events that one output makes: for a chat, its role
// first.
func (s *Server) appendChunks(out []byte, c *call, m *mail) []byte {
	ch := &c.choices[m.choice]
	if ch.finish != "" {
		return out
	}
	text, ids := s.read(ch, &m.Output)
	if ch.failure != nil {
		return out
	}
	first := !ch.begun
	ch.begun = true
	a := s.object(c, c.chunk)
	one := answerChoice{Index: m.choice}
	if c.endpoint == openai.Chat {
		if first {
			role := a
			one.Delta = &openai.ChatDelta{Role: "assistant", Content: new(string)}
			c.showIDs(&role, &one, ch, nil, true)
			role.Choices = []answerChoice{one}
			out = appendJSON(out, role)
			first = false
		}
		one.Delta = &openai.ChatDelta{Content: &text}
	} else {
		one.Text = &text
	}
	if ch.finish != "" {
		one.FinishReason, one.StopReason = &ch.finish, ch.reason
	}
	c.showIDs(&a, &one, ch, ids, first)
	a.Choices = []answerChoice{one}
	return appendJSON(out, a)
}

// object is an answer without choices.
func (s *Server) object(c *call, kind string) answerObject {
	return answerObject{ID: c.id, Object: kind, Created: c.created, Model: s.cfg.Model, Choices: []answerChoice{}}
}

// showIDs adds token ids where they were asked for: the answer's, and the
// prompt's once.
func (c *call) showIDs(a *answerObject, one *answerChoice, ch *choice, ids []uint32, prompt bool) {
	if !c.tokenIDs {
		return
	}
	one.TokenIDs = ids
	switch {
	case !prompt:
	case c.endpoint == openai.Chat:
		a.PromptTokenIDs = ch.request.Prompt
	default:
		one.PromptTokenIDs = ch.request.Prompt
	}
}

// appendJSON appends v as an event.
func appendJSON(out []byte, v any) []byte {
	data, _ := json.Marshal(v) // cannot fail: the types are this file's
	return openai.AppendEvent(out, data)
}

func errorJSON(e *apiError) []byte {
	data, _ := json.Marshal(map[string]*apiError{"error": e}) // cannot fail
	return data
}

func writeError(w http.ResponseWriter, e *apiError) {
	writeJSON(w, e.Code, json.RawMessage(errorJSON(e)))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	data, _ := json.Marshal(v) // cannot fail: the package's own types
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // a client that has gone needs no answer
}
