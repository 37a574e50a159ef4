package replay

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Millis is a duration that JSON shows as milliseconds, to the microsecond.
type Millis time.Duration

// MarshalJSON implements json.Marshaler.
func (m Millis) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, m.Float(), 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Millis) UnmarshalJSON(data []byte) error {
	var ms float64
	if err := json.Unmarshal(data, &ms); err != nil {
		return err
	}
	*m = Millis(math.Round(ms * 1e6))
	return nil
}

// Float returns the milliseconds, to the microsecond.
func (m Millis) Float() float64 {
	return float64(time.Duration(m).Round(time.Microsecond).Microseconds()) / 1e3
}

// How a request ended, apart from "http_" and a status that is not 200.
const (
	// Answered: the whole answer arrived, up to [DONE].
	Answered = "ok"
	// NotSent: the bound of requests in flight was reached.
	NotSent = "not_sent"
	// Cancelled: the run was ended while it was in flight.
	Cancelled = "cancelled"
	// TimedOut: it took longer than the limit.
	TimedOut = "timeout"
	// Unreachable: no answer, because the connection failed.
	Unreachable = "unreachable"
	// ErrorEvent: the stream carried an error.
	ErrorEvent = "error_event"
	// Cut: the stream ended before [DONE].
	Cut = "cut"
	// Malformed: the stream was none, or held an event too long to read.
	Malformed = "malformed"
)

// Sample is the result of one request. Times count from the start of the run
// (Scheduled) or from Scheduled (Late, TTFT, E2E).
type Sample struct {
	Index   int    `json:"index"`
	Session string `json:"session,omitempty"`
	// Outcome is how it ended: Answered, or the class of its failure. Detail is the sentence of a failure and Code its
	// name for programs, both as the endpoint reported them.
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
	Code    string `json:"code,omitempty"`
	// Status is the HTTP status, 0 without one.
	Status int `json:"status,omitempty"`

	// Scheduled is when it should have been sent, Late how long after that it was.
	Scheduled Millis `json:"scheduled_ms"`
	Late      Millis `json:"late_ms"`
	// TTFT is when the first token with content arrived, 0 without one.
	TTFT Millis `json:"ttft_ms"`
	// Queue and Prefill are parts of TTFT as the endpoint reports them, 0 where it does not.
	Queue   Millis `json:"queue_ms,omitempty"`
	Prefill Millis `json:"prefill_ms,omitempty"`
	// ITL is (E2E − TTFT)/(OutputTokens − 1), the request's mean time between
	// tokens, 0 for answers of fewer than two: AIPerf's ITL, vLLM's TPOT.
	ITL Millis `json:"itl_ms"`
	// E2E is when the answer ended, be it in failure.
	E2E Millis `json:"e2e_ms"`
	// Gaps are the times between one chunk with content and the next: vLLM's ITL where each chunk is a token.
	Gaps []Millis `json:"-"`

	// InputTokens and AskedTokens are the tokens sent and requested.
	InputTokens int `json:"input_tokens"`
	AskedTokens int `json:"asked_tokens"`
	// OutputTokens is the tokens received: from the usage, else one for each chunk with content.
	OutputTokens int `json:"output_tokens"`
	// PromptTokens is from the usage, 0 without one.
	// CachedTokens of them were not computed again, −1 where the answer has no count.
	PromptTokens int `json:"prompt_tokens"`
	CachedTokens int `json:"cached_tokens"`

	// PrefillWorker and DecodeWorker served it, empty where the answer does not name them.
	PrefillWorker string `json:"prefill_worker,omitempty"`
	DecodeWorker  string `json:"decode_worker,omitempty"`
}

// Statuses and error codes by which endpoints refuse requests for want of room.
var (
	refusingStatuses = []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, 529}
	refusingCodes    = []string{"server_is_overloaded", "slow_down", "queue_timeout", "overloaded"}
)

// Refused reports whether the endpoint would not serve the request at the time:
// it answered 429, 503 or 529, or named a full or expired queue in an error.
func (s *Sample) Refused() bool {
	return s.Outcome != Answered && (slices.Contains(refusingStatuses, s.Status) || slices.Contains(refusingCodes, s.Code))
}

// newSample begins the sample of a request that is due at scheduled.
func newSample(r *Request, scheduled time.Duration) *Sample {
	return &Sample{
		Index: r.Index, Session: r.Session, Scheduled: Millis(scheduled),
		InputTokens: r.InputTokens(), AskedTokens: r.OutputTokens, CachedTokens: -1,
	}
}

// End sets E2E and the figures that depend on it, once TTFT and OutputTokens are set.
func (s *Sample) End(e2e time.Duration) {
	s.E2E = Millis(e2e)
	if s.TTFT > 0 && s.OutputTokens > 1 {
		s.ITL = (s.E2E - s.TTFT) / Millis(s.OutputTokens-1)
	}
}
