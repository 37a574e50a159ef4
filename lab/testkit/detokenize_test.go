package testkit

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// TestAsTheEngines compares the doubles with what the engines' own code made of the same tokens: vLLM 0.32.0's
// FastIncrementalDetokenizer with tokenizers 0.23.3, and SGLang 0.5.23's Req and DetokenizerManager, fed step by step
// with ids of the simulated model's tokenizer: texts, and their ids in any order.
func TestAsTheEngines(t *testing.T) {
	file, err := os.Open("testdata/engines.jsonl")
	require.NoError(t, err)
	defer file.Close()
	type answer struct {
		Events [][3]any // text, ids, held
		Stop   string
	}
	for lines := json.NewDecoder(file); lines.More(); {
		var c struct {
			Prompt, IDs  []uint32
			Steps        []int
			Stops        []string
			Include      bool
			Min          int
			VLLM, SGLang answer
		}
		require.NoError(t, lines.Decode(&c))
		for engine, want := range map[string]answer{"vllm": c.VLLM, "sglang": c.SGLang} {
			var got answer
			d := NewDetokenizer(engine, tokens.Sim(), c.Prompt, Stops{Strings: c.Stops, Include: c.Include, MinTokens: c.Min})
			for at, steps := 0, c.Steps; len(steps) > 0 && got.Stop == ""; steps = steps[1:] {
				end := More
				if len(steps) == 1 {
					end = Last
				}
				shown := d.Step(c.IDs[at:at+steps[0]], end)
				at += steps[0]
				ids := []any{}
				for _, id := range shown.IDs {
					ids = append(ids, float64(id))
				}
				got.Events = append(got.Events, [3]any{shown.Text, ids, shown.Held})
				got.Stop = shown.Stop
			}
			assert.Equal(t, want, got, "%s shows of %v in steps of %v, with %q", engine, c.IDs, c.Steps, c.Stops)
		}
	}
}
