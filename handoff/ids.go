package handoff

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"sync/atomic"
)

// ids names requests for engines. With a seed the names follow from it and the order of requests, so ties and
// injected faults repeat; without one they are random, so gateways never share one.
type ids struct {
	seed uint64
	made atomic.Uint64
}

// next returns a new name of 16 hexadecimal digits.
func (s *ids) next() string {
	if s.seed == 0 {
		var raw [8]byte
		_, _ = rand.Read(raw[:]) // crypto/rand never fails on the supported systems
		return hex.EncodeToString(raw[:])
	}
	return SeededID(s.seed, s.made.Add(1))
}

// transferID returns a random number that names one round, from 2^42 (TensorRT-LLM's snowflakes) to 2^63−1
// (SGLang's rooms are signed). It ignores the seed: two requests of one number would get each other's KV.
func transferID() int64 {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // crypto/rand never fails on the supported systems
	return int64(binary.LittleEndian.Uint64(raw[:])&math.MaxInt64 | 1<<42)
}

// SeededID returns the name that a flow with this Config.Seed, not 0, gives to its n-th request, from 1.
func SeededID(seed, n uint64) string {
	// SplitMix64 (Steele, Lea and Flood, 2014): its output function is one to one, so that no two numbers make the
	// same name.
	x := seed + n*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return fmt.Sprintf("%016x", x^x>>31)
}
