package engine

import (
	"fmt"
	"math"
	"time"
)

// Latency is what one step of the batch takes on the modelled hardware, with B sequences that decode over ctx thousand
// tokens of context together, and prefill chunks of N thousand new tokens behind P thousand computed ones:
//
//	decode  = A + B·sequences + Ctx·ctx
//	chunk   = Prefill·N + Quad·N·(P + N/2)
//	step    = decode + chunks       when anything decodes
//	        = max(A, chunks)        when nothing does
//	        ≥ Floor                 with any chunk
//
// The form and the default's coefficients were fitted to NVIDIA's measured silicon points (AIConfigurator,
// silicon_sample.csv, Apache-2.0: 25 points of vLLM, mean error 1.7 %); Quad was derived from the ratio of attention's
// floating-point operations to the rest, since those points end at 8k tokens.
type Latency struct {
	A       float64 // ms: any step, the reading of the weights
	B       float64 // ms a decoding sequence
	Ctx     float64 // ms a thousand tokens of decoding context
	Prefill float64 // ms a thousand new prompt tokens
	Quad    float64 // ms a thousand new tokens times a thousand before them
	Floor   float64 // ms: the least of a step with any chunk, where decode alone runs as a CUDA graph
}

// Qwen3Latency is Qwen3-32B on two H100s under vLLM.
func Qwen3Latency() Latency {
	return Latency{A: 14.05, B: 0.0625, Ctx: 0.0492, Prefill: 45.5, Quad: 1.43}
}

// ChunkMillis is the milliseconds that computing new tokens behind a prefix of computed tokens adds to a step.
func (l Latency) ChunkMillis(newTokens, prefixTokens int) float64 {
	n, p := kilo(newTokens), kilo(prefixTokens)
	// The conversions keep compilers from fusing a product and a sum, which would round otherwise on other machines.
	linear := float64(l.Prefill * n)
	behind := float64(p + float64(n/2))
	return linear + float64(float64(l.Quad*n)*behind)
}

// Step is the duration of a step at speed 1, given its decoding sequences,
// the sum of their contexts in tokens and the sum of its chunks' milliseconds.
func (l Latency) Step(decodes, contextTokens int, chunksMillis float64) time.Duration {
	ms := max(l.A, chunksMillis)
	if decodes > 0 {
		sequences := float64(l.B * float64(decodes))
		context := float64(l.Ctx * kilo(contextTokens))
		ms = l.A + sequences + context + chunksMillis
	}
	if chunksMillis > 0 {
		ms = max(ms, l.Floor)
	}
	return millis(ms)
}

func (l Latency) validate() error {
	for _, f := range []struct {
		name string
		x    float64
	}{{"A", l.A}, {"B", l.B}, {"Ctx", l.Ctx}, {"Prefill", l.Prefill}, {"Quad", l.Quad}, {"Floor", l.Floor}} {
		if !(f.x >= 0) || math.IsInf(f.x, 0) {
			return fmt.Errorf("engine: Latency.%s is %g, want 0 or more", f.name, f.x)
		}
	}
	return nil
}

func kilo(tokens int) float64 { return float64(tokens) / 1000 }

// millis rounds to whole nanoseconds, so that no later sum depends on the order of its terms.
func millis(ms float64) time.Duration {
	return time.Duration(math.Round(float64(ms * float64(time.Millisecond))))
}
