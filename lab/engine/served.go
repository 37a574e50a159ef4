package engine

import (
	"net/http"
	"time"
)

// Served is a request for answers that is over, as an engine's own tracing reports it.
type Served struct {
	// TraceParent is the header by which its caller named its span; empty without one.
	TraceParent string
	// RequestID is the answer's id.
	RequestID string
	// Began and Ended bound the request.
	Began, Ended time.Time
	// PromptTokens, Generated and MaxTokens are counted in tokens; Generated is of all answers together.
	PromptTokens, Generated, MaxTokens int
}

// report hands the request to Config.OnServed.
func (s *Server) report(r *http.Request, c *call, began, ended time.Time) {
	if s.cfg.OnServed == nil {
		return
	}
	out := Served{
		TraceParent: r.Header.Get("Traceparent"), RequestID: c.id, Began: began, Ended: ended,
		PromptTokens: c.promptTokens, MaxTokens: c.request.MaxTokens,
	}
	for i := range c.choices {
		out.Generated += c.choices[i].generated
	}
	s.cfg.OnServed(out)
}
