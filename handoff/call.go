package handoff

import (
	"strings"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
)

// HeaderPolicyClass is the header in which a client names a policy class.
const HeaderPolicyClass = "x-dynamo-meta-policy-class"

// Call is one client request as the edge hands it over. Nothing in it may be changed while Serve runs, and
// Request.Raw is the flow's own copy of the body.
type Call struct {
	// ID is the client's request id (x-request-id, taken or made). It names the request to people: answers, errors
	// and log lines carry it. Engines never see it.
	ID string

	// Client is the address that the request came from, for the log, and Server the one that it came to.
	Client, Server string

	// Request is the scanned body.
	Request *openai.Request

	// Alone is what Serve says at its end: nothing of the gateway refers to Request.Raw any more, and its memory may be used
	// again. Without it, something may.
	Alone bool

	// Arrival is when the request's head was read: TTFT and the queue count from it.
	Arrival time.Time

	// Priority overrides nvext.agent_hints.priority where a header set it.
	Priority *int32

	// StrictPriority overrides nvext.agent_hints.strict_priority where a header set it.
	StrictPriority *uint32

	// PolicyClass is the policy class, or the family of classes, that the client names in a header; empty where it names
	// none. A name that is none of the gateway's counts as none.
	PolicyClass string
	// Session overrides Request.Session where a header set it.
	Session string

	// Pins are the workers that headers named, which win over nvext's.
	Pins Pins

	// IgnoredHints names the fields of this request's hints that the edge has lowered or left out, for the log.
	IgnoredHints []string

	// TraceParent is the client's W3C traceparent header, valid, or empty. Engines get it as it came unless the gateway
	// decides itself which requests are traced.
	TraceParent string

	// TraceState is the tracestate header that came with TraceParent, or empty.
	TraceState string

	// Forward is the fields of the client's head that the operator wants engines to see. Nothing else of the head
	// reaches them.
	Forward []upstream.Field
}

// TraceID is the trace's id, the second field of TraceParent: 32 hexadecimal digits, or empty without one.
func (c *Call) TraceID() string {
	if _, rest, ok := strings.Cut(c.TraceParent, "-"); ok {
		id, _, _ := strings.Cut(rest, "-")
		return id
	}
	return ""
}

// Sink takes the answer. When Serve returns an error without having called Start, the edge writes that error as the
// answer.
type Sink = decode.Sink
