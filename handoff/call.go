package handoff

import (
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// HeaderPolicyClass is the header in which a client names a policy class.
const HeaderPolicyClass = "x-dynamo-meta-policy-class"

// Call is one client request from the edge. Nothing in it may change while Serve runs.
type Call struct {
	// ID is the client's request id (x-request-id, taken or made), for answers, errors and logs. Engines never see
	// it.
	ID string

	// Client is the remote address, for the log; Server is the local one.
	Client, Server string

	// Request is the scanned body.
	Request *openai.Request

	// Body is the memory of Request.Raw, nil if it is of no pool. The edge releases it when Serve has returned; what
	// runs on retains it.
	Body *http1.Buf

	// OnPrompt, if not nil, gets the prompt's length in tokens where the gateway has it before the answer begins.
	OnPrompt func(tokens int)

	// Arrival is when the request's head was read: TTFT and the queue count from it.
	Arrival time.Time

	// Priority overrides nvext.agent_hints.priority where a header set it.
	Priority *int32

	// StrictPriority overrides nvext.agent_hints.strict_priority where a header set it.
	StrictPriority *uint32

	// PolicyClass is the policy class, or the family of classes, from the client's header, or empty. An unknown name
	// counts as none.
	PolicyClass string
	// Session overrides Request.Session where a header set it.
	Session string

	// Pins are the workers from headers; they override nvext's.
	Pins Pins

	// IgnoredHints names the hint fields that the edge lowered or dropped, for the log.
	IgnoredHints []string

	// TraceParent is the client's W3C traceparent header, valid, or empty. Engines get it unchanged unless the
	// gateway samples traces itself.
	TraceParent string

	// TraceState is the tracestate header next to TraceParent, or empty.
	TraceState string

	// Forward is the client's header fields that the operator forwards to engines; no others reach them.
	Forward []http1.Field
}

// TraceID returns TraceParent's trace id: 32 hexadecimal digits, or empty.
func (c *Call) TraceID() string {
	if _, rest, ok := strings.Cut(c.TraceParent, "-"); ok {
		id, _, _ := strings.Cut(rest, "-")
		return id
	}
	return ""
}

// Sink receives the answer. When Serve returns an error before calling Start, the edge writes that error as the
// answer.
type Sink = http1.Sink
