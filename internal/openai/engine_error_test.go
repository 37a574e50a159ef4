package openai

import "testing"

// Each engine words an error in its own way; the status is read from the code or,
// where that is no number, from the type.
func TestReadEngineError(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       EngineError
	}{
		{"vLLM", `{"error":{"message":"no","type":"BadRequestError","param":"n","code":400}}`, EngineError{400, "no", "n"}},
		{"older vLLM", `{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}`, EngineError{400, "no", ""}},
		{"a code in a string", `{"error":{"message":"no","code":"422"}}`, EngineError{422, "no", ""}},
		{"a code in a word", `{"error":{"message":"no","type":"invalid_request_error","code":"context_length_exceeded"}}`, EngineError{400, "no", ""}},
		{"the code wins over the type", `{"error":{"type":"BadRequestError","code":500}}`, EngineError{500, "", ""}},
		{"no code", `{"error":{"message":"no","type":"NotFoundError"}}`, EngineError{404, "no", ""}},
		{"a code that is no error's", `{"error":{"message":"no","code":200}}`, EngineError{0, "no", ""}},
		{"a code out of bounds", `{"error":{"message":"no","code":99999999999999999999}}`, EngineError{0, "no", ""}},
		{"neither code nor type", `{"error":{"message":"no"}}`, EngineError{0, "no", ""}},
		{"an unknown type", `{"error":{"type":"Strange"}}`, EngineError{}},
		{"a word", `{"error":"Unauthorized"}`, EngineError{}},
		{"a message of another type", `{"error":{"message":{"a":1},"code":400}}`, EngineError{400, "", ""}},
		{"FastAPI", `{"detail":"Not Found"}`, EngineError{}},
		{"no JSON", `<html>`, EngineError{}},
		{"null", `{"error":null}`, EngineError{}},
	} {
		if got := ReadEngineError([]byte(c.data)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
