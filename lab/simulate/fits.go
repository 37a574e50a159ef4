package simulate

import (
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/lab/engine"
)

// Fit is a model on a piece of hardware, as it was measured.
type Fit struct {
	Name, About string
	Latency     engine.Latency
	// KVTokens is one worker's KV capacity as published, 0 if unknown; BytesPerToken is a token's size.
	KVTokens, BytesPerToken int
}

// Fits are the latency models that a plan can name. Those called fitted are fits of step = A+B·batch+Ctx·context to
// NVIDIA's measured points (AIConfigurator, silicon_sample.csv, Apache-2.0). Their mean error is 0.9 to 3.7 %; a
// prefill rate without a quadratic term holds for prompts of up to 8k tokens. qwen2.5-7b-h200-tp1 is a fit to
// bench/recipes/h200.jsonl, and its Ctx a token's bytes over 80 % of the memory's bandwidth, as in those;
// TestMeasuredEngine bounds what it leaves.
var Fits = []Fit{
	{"qwen3-32b-h100-tp2", "Qwen3-32B on 2 H100 under vLLM, fitted; attention's share of long prompts derived",
		engine.Latency{A: 14.05, B: 0.0625, Ctx: 0.0492, Prefill: 45.5, Quad: 1.43}, 307_328, 262_144},
	{"qwen3-32b-h200-tp2", "the same on 2 H200: decode scaled by memory bandwidth, not measured",
		engine.Latency{A: 10.5, B: 0.0625, Ctx: 0.0344, Prefill: 45.5, Quad: 1.43}, 671_000, 262_144},
	{"qwen3-32b-h100-tp4", "Qwen3-32B on 4 H100 under vLLM, fitted",
		engine.Latency{A: 9.26, B: 0.0608, Ctx: 0.0253, Prefill: 28.8}, 0, 262_144},
	{"qwen3-32b-h100-tp8", "Qwen3-32B on 8 H100 under vLLM, fitted",
		engine.Latency{A: 7.02, B: 0.0659, Ctx: 0.0107, Prefill: 18.0}, 0, 262_144},
	{"llama3.1-70b-fp8-h100-tp4", "Llama-3.1-70B in FP8 on 4 H100 under vLLM, fitted",
		engine.Latency{A: 11.02, B: 0.0547, Ctx: 0.0279, Prefill: 44.6}, 0, 327_680},
	{"llama3.1-70b-fp8-h200-tp4", "Llama-3.1-70B in FP8 on 4 H200 under vLLM, fitted",
		engine.Latency{A: 9.18, B: 0.0455, Ctx: 0.0208, Prefill: 42.4}, 0, 327_680},
	{"llama3.1-8b-h100-tp1", "Llama-3.1-8B on one H100 under TensorRT-LLM, fitted",
		engine.Latency{A: 6.43, B: 0, Ctx: 0.0513, Prefill: 19.6}, 0, 131_072},
	{"qwen2.5-7b-h200-tp1", "Qwen2.5-7B in BF16 on one H200 under vLLM, which had half of its memory; fitted, without the front end's 10 ms of TTFT",
		engine.Latency{A: 4.25, B: 0.032, Ctx: 0.015, Prefill: 21.4, Quad: 0.85, Floor: 24}, 224_688, 57_344},
	{"llama3-70b-a800x8", "a Llama-3-70B on 8 A800, analytic: what Mooncake's authors ran (FAST'25, §5)",
		engine.Latency{A: 14.5, B: 0.07, Ctx: 0.033, Prefill: 112, Quad: 2.1}, 1_330_000, 327_680},
}

// FitNames lists the fits for an error or a help text.
func FitNames() string {
	var names []string
	for _, f := range Fits {
		names = append(names, f.Name)
	}
	return strings.Join(names, ", ")
}

// FitNamed finds a fit.
func FitNamed(name string) (Fit, bool) {
	i := slices.IndexFunc(Fits, func(f Fit) bool { return f.Name == name })
	if i < 0 {
		return Fit{}, false
	}
	return Fits[i], true
}
