package edge

import (
	"net/textproto"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
)

// head are the fields of a request by which its client steers the call, each as it first appears; nil where it does not.
type head [heads][]byte

const (
	headSession = iota
	headDynamoSession
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

// steering is where they lie in a head, by canonical name.
var steering = map[string]int{
	headerSession:                        headSession,
	headerDynamoSession:                  headDynamoSession,
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

func canonical(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }

// read looks at each field of a request once: to ask fasthttp for one takes it 600 instructions, whether it is there or not.
func (h *head) read(from *fasthttp.RequestHeader) {
	for name, value := range from.All() {
		if i, known := steering[string(name)]; known && h[i] == nil {
			h[i] = value
		}
	}
}
