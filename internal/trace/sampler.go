package trace

import (
	"encoding/binary"
	"strings"
)

// sampler decides which requests are traced, as the SDK's samplers of the same names do, and without a span.
type sampler struct {
	byParent bool   // a client's decision is kept
	bound    uint64 // traces whose id has less in its last 63 bits are sampled
}

// everything is the bound of all traces.
const everything = 1 << 63

// newSampler returns the sampler of an OTEL_TRACES_SAMPLER; an unknown name gives the default.
func newSampler(name string, ratio float64) (s sampler, ok bool) {
	root, byParent := strings.CutPrefix(name, "parentbased_")
	s = sampler{byParent: byParent}
	switch root {
	case "always_on":
		s.bound = everything
	case "always_off":
	case "traceidratio":
		s.bound = uint64(ratio * everything)
	default:
		return sampler{byParent: true, bound: uint64(ratio * everything)}, false
	}
	return s, true
}

// sample reports whether the request of a trace is traced; parent is the client's span, zero without one.
func (s sampler) sample(id TraceID, parent Context) bool {
	if s.byParent && parent.Trace != (TraceID{}) {
		return parent.IsSampled()
	}
	return binary.BigEndian.Uint64(id[8:])>>1 < s.bound
}
