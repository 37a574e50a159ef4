package openai

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// Every field that names token ids is compared with the vocabulary, at its edge, and ids below 0 are refused whatever its
// size: SGLang 0.5.23 ends with an IndexError over those of a prompt and of stop_token_ids. Values that are infinite in the
// 32 bits of an engine's logits are refused too.
func TestVocabulary(t *testing.T) {
	const size = 1000
	for _, c := range []struct{ field, good, outside, wrong string }{
		{"prompt", `[0,999]`, `[1000,3]`, `[3,-1]`},
		{"prompt", `[[0,999]]`, `[[3,4294967295]]`, `[[3,-1]]`},
		{"prompt", `"1000"`, ``, `[4294967296]`},
		{"stop_token_ids", `[999]`, `[3,1000]`, `[-1]`},
		{"stop_token_ids", `[]`, `[999999]`, `[3.5]`},
		{"allowed_token_ids", `[999]`, `[1000]`, `[-1]`},
		{"logprob_token_ids", `[999]`, `[1000]`, `[1e-3]`},
		{"token_ids_logprob", `[999]`, `[1000]`, `["x"]`},
		{"bad_token_ids", `[999]`, `[1000]`, `3`},
		{"bad_words_token_ids", `[[999],[3,4]]`, `[[3],[4,1000]]`, `[[-1]]`},
		{"bad_words_ids", `[999]`, `[1000]`, `[[3],-1]`},
		{"logprobs", `1000`, `1001`, `-2`},
		{"logprobs", `-1`, `2147483647`, `"5e0"`},
		{"logit_bias", `{"0":-100,"999":1e6}`, `{"3":1,"1000":0}`, `{"-1":0}`},
		{"logit_bias", `{}`, `{"4294967295":1}`, `{"3":1e39}`},
		{"logit_bias", `{"\u0033":1.5," 03":1}`, `{"01000":1}`, `{"3.0":1}`},
		{"logit_bias", `null`, ``, `{"3":null}`},
		{"repetition_penalty", `1e-6`, ``, `1e-40`},
		{"stream_interval", `1`, ``, `1180591620717411303424`}, // over which vLLM 0.32 answers 500
		{"repetition_penalty", `2`, ``, `1e39`},
	} {
		body := func(value string) []byte {
			if c.field == "prompt" {
				return []byte(`{"model":"m","prompt":` + value + `}`)
			}
			return []byte(`{"model":"m","prompt":[0],"` + c.field + `":` + value + `}`)
		}
		outside := func(value string) *Error {
			r, err := Limits{}.Scan(Completions, body(value))
			if err != nil {
				t.Fatalf("%s %s: %v", c.field, value, err)
			}
			return r.OutsideVocabulary(size)
		}
		if err := outside(c.good); err != nil {
			t.Errorf("%s %s: %v", c.field, c.good, err)
		}
		if c.outside != "" {
			if err := outside(c.outside); err == nil || err.Status != http.StatusBadRequest || err.Param != c.field || !strings.Contains(err.Message, "ends at 999") && !strings.Contains(err.Message, "has 1000 tokens") {
				t.Errorf("%s %s: %+v", c.field, c.outside, err)
			}
		}
		_, err := Limits{}.Scan(Completions, body(c.wrong))
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusBadRequest || e.Param != c.field {
			t.Errorf("%s %s: %v", c.field, c.wrong, err)
		}
	}
}
