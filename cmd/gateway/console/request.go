package console

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
)

type summary struct {
	Outcome         string // ok, a fault class or an error's code
	Endpoint        string
	Stream          bool
	ISL, OSL        int // prompt and answer, in tokens
	Tokenized       bool
	Predicted       int // prompt tokens that the router expected in the cache
	Actual          int // the worker's reported count; below 0 if unknown
	Attempts        int
	Resumes         int
	OneLeg          string // why there was no prefill leg, or empty
	Prefill, Decode handoff.Choice
	TTFT            time.Duration // 0 without a first token, or if not streamed
	ITL             time.Duration // the mean between two tokens; 0 with fewer than two
	Total           time.Duration
	Queued          time.Duration
	Transfer        time.Duration // from prefill's answer to decode's first token; 0 without a hand-off or TTFT
	Family          uint64        // of the prompt's beginning; 0 for none
}

// summarize reads r, which ended at now.
func summarize(r *handoff.Record, now time.Time) summary {
	sent := &r.Sent
	s := summary{
		Outcome: r.Outcome, Endpoint: r.Call.Request.Endpoint.String(), Stream: r.Call.Request.Stream,
		ISL: r.ISL, OSL: sent.Tokens, Tokenized: r.Tokenized, Predicted: r.OverlapTokens, Actual: r.Found(sent),
		Attempts: r.Attempts, Resumes: r.Resumes, OneLeg: r.Reason, Prefill: r.Prefill, Decode: r.Decode,
		Total: now.Sub(r.Call.Arrival), Queued: r.Spent.Queued,
	}
	if !sent.First.IsZero() && s.Stream {
		s.TTFT = sent.First.Sub(r.Call.Arrival)
		if r.KV != nil && r.Resumes == 0 {
			s.Transfer = sent.First.Sub(r.HandedOver)
		}
	}
	if sent.Streamed > 1 {
		s.ITL = sent.Last.Sub(sent.First) / time.Duration(sent.Streamed-1)
	}
	return s
}

// slowness orders the slowest requests: TTFT or, without a first token, the total time. Answers that are not streamed
// have none.
func (s *summary) slowness() time.Duration {
	if s.TTFT > 0 || s.ok() && !s.Stream {
		return s.TTFT
	}
	return s.Total
}

// ok reports whether the client got its whole answer.
func (s *summary) ok() bool { return s.Outcome == fault.None.String() }

// Request is a copy of a trace for the page.
type Request struct {
	summary
	ID, Name string // the client's and the gateway's
	Model    string
	Arrived  time.Time
	Phase    Phase
	Steps    []Step
	Dropped  int // steps not stored
}

func (t *trace) copied() Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Request{
		summary: t.sum, ID: t.id, Name: t.name, Model: t.model, Arrived: t.arrived, Phase: t.phase,
		Steps: slices.Clone(t.steps), Dropped: t.count - len(t.steps),
	}
}
