package edge

import (
	"net/textproto"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
)

// head is the header fields that control a call, each by its first value; nil if absent.
type head [heads][]byte

// sessionHeaders are the fields that name a conversation, the most exact first: Dynamo's, Claude Code's, Codex's of three
// ages, OpenCode's and vLLM's, TensorRT-LLM's. A correlation id is none: most services make one a request.
var sessionHeaders = [...]string{"X-Dynamo-Session-Id", "X-Claude-Code-Session-Id", "Thread-Id", "Session-Id", "Session_id",
	"X-Session-Id", "X-Session-Affinity", "X-Multi-Turn-Session-Id"}

const (
	headSession = iota // the first of sessionHeaders
	headAgent   = iota + len(sessionHeaders) - 1
	headPriority
	headStrictPriority
	headPolicyClass
	headWorker
	headPrefill
	headRank
	headPrefillRank
	headGateway
	headTraceParent
	heads
)

// steering maps canonical names to their index in head.
var steering = map[string]int{
	"X-Claude-Code-Agent-Id":             headAgent,
	headerPriority:                       headPriority,
	headerStrictPriority:                 headStrictPriority,
	canonical(handoff.HeaderPolicyClass): headPolicyClass,
	canonical(handoff.HeaderWorker):      headWorker,
	canonical(handoff.HeaderPrefill):     headPrefill,
	canonical(handoff.HeaderRank):        headRank,
	canonical(handoff.HeaderPrefillRank): headPrefillRank,
	headerGateway:                        headGateway,
	headerTraceParent:                    headTraceParent,
}

func init() {
	for i, name := range sessionHeaders {
		steering[canonical(name)] = headSession + i
	}
}

// session returns the conversation's name, empty without one. Claude Code's subagents share their parent's session and
// have conversations of their own.
func (h *head) session() string {
	for i, v := range h[headSession:headAgent] {
		switch {
		case len(v) == 0:
		case sessionHeaders[i] == "X-Claude-Code-Session-Id" && len(h[headAgent]) > 0:
			return string(v) + "/" + string(h[headAgent])
		default:
			return string(v)
		}
	}
	return ""
}

func canonical(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }

// read visits each field of a request once: a look-up in fasthttp takes 600 instructions, found or not.
func (h *head) read(from *fasthttp.RequestHeader) {
	for name, value := range from.All() {
		if i, known := steering[string(name)]; known && h[i] == nil {
			h[i] = value
		}
	}
}
