package handoff

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"sync/atomic"
)

// ids names requests to engines. With a seed the names follow from it and from the requests' order, so that what
// hangs on a name (a tie's draw, a fault scenario's choice of calls) happens again; without one they are drawn, so
// that several gateways never share one.
type ids struct {
	seed uint64
	made atomic.Uint64
}

// next returns a name of 16 hexadecimal digits, a new one each time.
func (s *ids) next() string {
	if s.seed == 0 {
		var raw [8]byte
		_, _ = rand.Read(raw[:]) // crypto/rand never fails on the supported systems
		return hex.EncodeToString(raw[:])
	}
	return SeededID(s.seed, s.made.Add(1))
}

// transferID is a number that names one attempt to engines, from 2^42 to 2^63−1: they ask for no less (TensorRT-LLM's
// snowflakes) and no more (SGLang's rooms are signed). It is drawn, with a seed too: two requests of one number would
// be given each other's KV, and two gateways may have one seed.
func transferID() int64 {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // crypto/rand never fails on the supported systems
	return int64(binary.LittleEndian.Uint64(raw[:])&math.MaxInt64 | 1<<42)
}

// SeededID is the name that a flow with this Config.Seed, not 0, gives to the n-th request that it serves, counted
// from 1: for a replay of a gateway's choices without one.
func SeededID(seed, n uint64) string {
	// SplitMix64 (Steele, Lea and Flood, 2014): its output function is one to one, so that no two numbers make the
	// same name.
	x := seed + n*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return fmt.Sprintf("%016x", x^x>>31)
}
