package console

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
)

type summary struct {
	Outcome   string         `json:"outcome"` // ok, a fault class or an error's code
	Endpoint  string         `json:"endpoint"`
	Stream    bool           `json:"stream"`
	ISL       int            `json:"prompt_tokens"`
	OSL       int            `json:"answer_tokens"`
	Tokenized bool           `json:"tokenized"`
	Predicted int            `json:"predicted_tokens"` // prompt tokens that the router expected in the cache
	Actual    int            `json:"cached_tokens"`    // the worker's reported count; below 0 if unknown
	Attempts  int            `json:"attempts"`
	Resumes   int            `json:"resumes"`
	OneLeg    string         `json:"one_leg,omitempty"`      // why there was no prefill leg, or empty
	Class     string         `json:"policy_class,omitempty"` // that it waited in
	Prefill   handoff.Choice `json:"prefill"`
	Decode    handoff.Choice `json:"decode"`
	TTFT      time.Duration  `json:"ttft_ns"` // 0 without a first token, or if not streamed
	ITL       time.Duration  `json:"itl_ns"`  // the mean between two tokens; 0 with fewer than two
	Total     time.Duration  `json:"total_ns"`
	Queued    time.Duration  `json:"queue_ns"`
	Transfer  time.Duration  `json:"transfer_ns"` // from prefill's answer to decode's first token; 0 without a hand-off or TTFT
	Family    uint64         `json:"-"`           // of the prompt's beginning; 0 for none
	session   uint64         // a digest; 0 for none
}

// summarize reads r, which ended at now.
func summarize(r *handoff.Record, now time.Time) summary {
	sent := &r.Sent
	s := summary{
		Outcome: r.Outcome, Endpoint: r.Call.Request.Endpoint.String(), Stream: r.Call.Request.Stream,
		ISL: r.ISL, OSL: sent.Tokens, Tokenized: r.Tokenized, Predicted: r.OverlapTokens, Actual: r.Found(sent),
		Attempts: r.Attempts, Resumes: r.Resumes, OneLeg: r.Reason, Class: r.PolicyClass, Prefill: r.Prefill, Decode: r.Decode,
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

// ok reports whether the client got its whole answer.
func (s *summary) ok() bool { return s.Outcome == fault.None.String() }

// Request is a copy of a trace for the page.
type Request struct {
	summary
	ID      string    `json:"request_id"`        // the client's
	Name    string    `json:"engine_request_id"` // the gateway's
	Model   string    `json:"model"`
	Arrived time.Time `json:"arrived"`
	Phase   Phase     `json:"phase"` // 5 is over
	Steps   []Step    `json:"steps,omitempty"`
	Dropped int       `json:"steps_dropped,omitempty"`
	Gateway string    `json:"gateway,omitempty"` // set where several gateways' requests are merged
}

func (t *trace) copied() Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Request{
		summary: t.sum, ID: t.id, Name: t.name, Model: t.model, Arrived: t.arrived, Phase: t.phase,
		Steps: slices.Clone(t.steps), Dropped: t.count - len(t.steps),
	}
}
