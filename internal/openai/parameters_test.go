package openai

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// earlier are rows of the table for fields that the releases in testdata/schemas do not have: of earlier ones and of
// OpenAI.
const earlier = "functions logits_processors logit_processors guided_json guided_regex guided_choice guided_grammar guided_json_object " +
	"structural_tag grammar min_completion_tokens"

// Every field of an engine's request has its row, and no row is without a field; the gateway's own are those that it
// refuses of clients. A field of a new release is to be read in its source before it gets a row: what it does on a
// prefill leg, and with the tokens that another engine has generated.
func TestParametersOfTheEngines(t *testing.T) {
	files, err := filepath.Glob("testdata/schemas/*.txt")
	require.True(t, err == nil && len(files) == 2, "%v, %v", files, err)
	unseen := map[string]bool{}
	for _, p := range parameters {
		assert.False(t, unseen[p.name], "%s has two rows", p.name)
		unseen[p.name] = true
	}
	for _, name := range strings.Fields(earlier) {
		delete(unseen, name)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		fields := strings.Split(strings.TrimSpace(string(data)), "\n")[1:]
		assert.GreaterOrEqual(t, len(fields), 60, "%s fields", file)
		for _, name := range fields {
			delete(unseen, name)
			p := parameterOf[name]
			require.NotNil(t, p, "%s: %s has no row in parameters", file, name)
			assert.Equal(t, p.use == gateways, gatewayField([]byte(name)), "%s: a client may not send it", name)
		}
	}
	assert.Empty(t, unseen, "in no schema")
}

// What an engine has counted or begun over the tokens that it generated is lost where another one takes them for the
// prompt. Which those are is read in their sources: v1/sample/logits_processor and v1/core/sched/utils.py of vLLM 0.32
// see output_token_ids alone, sampling/penaltylib of SGLang 0.5.23 accumulates them.
func TestUnresumable(t *testing.T) {
	for _, c := range []struct{ members, vllm, sglang string }{
		{`"a":1`, "", ""},
		{`"bad_words":["to be"]`, "bad_words", "bad_words"},
		{`"bad_words":[ ]`, "", ""},
		{`"bad_words":null`, "", ""},
		{`"repetition_detection":{"max_pattern_size":3,"min_count":2}`, "repetition", "repetition"},
		{`"repetition_detection":{}`, "", ""},
		{`"presence_penalty":0.1`, "penalties", "penalties"},
		{`"frequency_penalty":-2,"temperature":0`, "penalties", "penalties"},
		{`"frequency_penalty":0.0,"presence_penalty":-0`, "", ""},
		{`"repetition_penalty":1.1`, "", "penalties"}, // vLLM's counts the prompt's tokens too
		{`"repetition_penalty":1.0`, "", ""},
		{`"min_tokens":3,"seed":1,"logit_bias":{"1":2},"allowed_token_ids":[1],"thinking_token_budget":9`, "", ""},
		{`"stop_regex":"a+"`, "stop", "stop"},
		{`"stop":["a"],"no_stop_trim":true,"include_stop_str_in_output":true`, "", ""}, // decode looks for it, and shows it
		{`"custom_params":{"thinking_budget":9}`, "processor", "processor"},
		{`"custom_params":{ }`, "", ""},
		{`"custom_logit_processor":"x"`, "processor", "processor"},
		{`"structured_outputs":{"regex":"a"}`, "grammar", "grammar"},
		{`"ebnf":"a"`, "grammar", "grammar"},
		{`"guided_json_object":false`, "", ""},
		{`"response_format":{ "type" : "text" }`, "", ""},
		{`"response_format":{"type":"json_object"}`, "grammar", "grammar"},
		{`"logprobs":0`, "logprobs", "logprobs"},
		{`"logprob_token_ids":[1]`, "logprobs", "logprobs"},
		{`"prompt_logprobs":0`, "", ""},
		{`"n":2`, "n", "n"},
		{`"n":1,"best_of":1,"use_beam_search":false,"echo":false`, "", ""},
		{`"best_of":2`, "n", "n"},
		{`"use_beam_search":true`, "n", "n"},
		{`"echo":true`, "echo", "echo"},
		{`"return_routed_experts":true`, "details", "details"},
		{`"max_tokens":0`, "max_tokens", "max_tokens"},
	} {
		r, err := Limits{}.Scan(Completions, []byte(`{"model":"m","prompt":"x",`+c.members+`}`))
		require.NoError(t, err, "%s", c.members)
		for engine, want := range map[string]string{"vllm": c.vllm, "sglang": c.sglang} {
			assert.Equal(t, want, r.Unresumable(engine, false), "%s, %s", engine, c.members)
		}
		if got := r.Unresumable("vllm", true); c.vllm == "" && got != "sampling" {
			t.Errorf("exact, %s: %q", c.members, got)
		}
	}
}
