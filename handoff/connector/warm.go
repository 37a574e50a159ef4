package connector

import (
	"math"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// fakeHost is the bootstrap host of a hand-off that moves nothing: FAKE_BOOTSTRAP_HOST in SGLang 0.5.23's
// srt/disaggregation/utils.py, which its own probes use.
const fakeHost = "2.2.2.2"

// last is the priority of a prompt that no request waits for.
var last = int32(math.MinInt16)

// Warm returns the call by which r.P computes the round's prompt for its prefix cache alone. It hands nothing over, so
// that nothing is left to release. An engine that prioritizes computes it last.
func Warm(r Round) (http1.Leg, error) {
	r.Priority = &last
	l, err := leg(r, pools.Prefill, func(e *openai.Edit) {
		firstToken(e, r.Request)
		switch speech(r.P) {
		case ofTensorRT:
			tensorRTPriority(e, r, r.P)
		case ofSGLang:
			if r.P.Prioritizes {
				e.SetInt("priority", int64(last))
			}
			if r.P.Ranks() > 1 {
				e.SetInt("routed_dp_rank", int64(r.PRank))
			}
			if r.P.Role == pools.Prefill {
				e.SetString("bootstrap_host", fakeHost)
				e.SetInt("bootstrap_room", int64(r.PRank))
			}
		}
	})
	l.Stream = false
	return l, err
}
