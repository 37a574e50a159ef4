package openai

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each engine words an error in its own way; the status is read from the code or,
// where that is no number, from the type.
func TestReadEngineError(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       EngineError
	}{
		{"vLLM", `{"error":{"message":"no","type":"BadRequestError","param":"n","code":400}}`,
			EngineError{Status: 400, Message: "no", Param: "n"}},
		{"older vLLM", `{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}`,
			EngineError{Status: 400, Message: "no"}},
		{"a code in a string", `{"error":{"message":"no","code":"422"}}`, EngineError{Status: 422, Message: "no"}},
		{"a code in a word", `{"error":{"message":"no","type":"invalid_request_error","code":"context_length_exceeded"}}`,
			EngineError{Status: 400, Message: "no"}},
		{"the code wins over the type", `{"error":{"type":"BadRequestError","code":500}}`, EngineError{Status: 500}},
		{"SGLang, an adapter that was unloaded",
			`{"object":"error","message":"Got LoRA adapter that has never been loaded: sql\nAll loaded adapters: dict_keys([]).","type":"BadRequestError","param":null,"code":400}`,
			EngineError{Status: 404, Message: "Got LoRA adapter that has never been loaded: sql\nAll loaded adapters: dict_keys([]).",
				NotLoaded: true}},
		{"no code", `{"error":{"message":"no","type":"NotFoundError"}}`, EngineError{Status: 404, Message: "no"}},
		{"a code that is no error's", `{"error":{"message":"no","code":200}}`, EngineError{Message: "no"}},
		{"a code out of bounds", `{"error":{"message":"no","code":99999999999999999999}}`, EngineError{Message: "no"}},
		{"neither code nor type", `{"error":{"message":"no"}}`, EngineError{Message: "no"}},
		{"an unknown type", `{"error":{"type":"Strange"}}`, EngineError{}},
		{"a word", `{"error":"Unauthorized"}`, EngineError{Message: "Unauthorized"}},
		{"TensorRT-LLM's checks", `{"error":"1 validation error:\n  {'type': 'extra_forbidden', 'loc': ('body', 'x'), 'msg': 'Extra inputs are not permitted', 'input': 1}\n"}`,
			EngineError{Message: "1 validation error:\n  {'type': 'extra_forbidden', 'loc': ('body', 'x'), 'msg': 'Extra inputs are not permitted', 'input': 1}\n", Param: "x"}},
		{"TensorRT-LLM's checks deep in a list", `{"error":"{'loc': ('body', 'messages', 0, 'role')}"}`,
			EngineError{Message: "{'loc': ('body', 'messages', 0, 'role')}", Param: "messages[0].role"}},
		{"TensorRT-LLM's checks cut off", `{"error":"{'loc': ('body', 'mess"}`, EngineError{Message: "{'loc': ('body', 'mess"}},
		{"TensorRT-LLM's failed transfer", `{"object":"error","message":"Error in kv cache transfer for generation requests","type":"BadRequestError","param":null,"code":400}`,
			EngineError{Status: 500, Message: "Error in kv cache transfer for generation requests", Failed: true}},
		{"vLLM's checks", `{"error":{"message":"1 validation error:\n  {'loc': 'body.prompt'}","type":"Bad Request","param":"body.messages.0.role","code":400}}`,
			EngineError{Status: 400, Message: "1 validation error:\n  {'loc': 'body.prompt'}", Param: "messages[0].role"}},
		{"a message of another type", `{"error":{"message":{"a":1},"code":400}}`, EngineError{Status: 400}},
		{"a core that died", `{"error":{"message":"EngineCore encountered an issue. See","code":400}}`,
			EngineError{Status: 400, Message: "EngineCore encountered an issue. See", Died: true}},
		{"a client's own text", `{"error":{"message":"no 'EngineCore encountered an issue'","code":400}}`,
			EngineError{Status: 400, Message: "no 'EngineCore encountered an issue'"}},
		{"FastAPI", `{"detail":"Not Found"}`, EngineError{Message: "Not Found"}},
		{"FastAPI's checks", `{"detail":[{"type":"int_parsing","loc":["body","n"],"msg":"should be a whole number","input":"x"},{"msg":"no"}]}`, EngineError{Message: "should be a whole number", Param: "n"}},
		{"FastAPI's checks deep in a list", `{"detail":[{"loc":["body","messages",0,"role"],"msg":"missing"}]}`,
			EngineError{Message: "missing", Param: "messages[0].role"}},
		{"FastAPI without checks", `{"detail":[]}`, EngineError{}},
		{"detail of another type", `{"detail":{"msg":"no"},"message":"yes"}`, EngineError{Message: "yes"}},
		{"no JSON", `<html>`, EngineError{}},
		{"null", `{"error":null}`, EngineError{}},
	} {
		assert.Equal(t, c.want, ReadEngineError([]byte(c.data)), c.name)
	}
}

// Of each error that a real SGLang answers, the field is named where it names one, and nothing of its server's files.
func TestRecordedEngineErrors(t *testing.T) {
	params := map[string]string{
		"room_text": "bootstrap_room", "room_float": "bootstrap_room", "chat_input_ids_no_messages": "messages", "chat_no_messages": "messages",
		"chat_bad_role": "messages[0].role", "chat_wrong_type": "max_tokens", "completion_max_tokens_0": "max_tokens",
		"completion_max_tokens_0_stream": "max_tokens", "model_none": "model",
	}
	for _, file := range []string{"answers_disaggregated.json", "answers_unified.json"} {
		raw, err := os.ReadFile("../../../shared/vectors/sglang-0.5.23/" + file)
		if os.IsNotExist(err) {
			t.Skipf("reads ../shared, which is absent: %v", err)
		}
		var answers []struct {
			Name, Body string
			Status     int
		}
		require.True(t, err == nil && json.Unmarshal(raw, &answers) == nil, "%v %v", file, err)
		for _, a := range answers {
			got := ReadEngineError([]byte(a.Body))
			if a.Status < 400 || got.Message == "" && !strings.Contains(a.Body, `"message"`) {
				continue
			}
			assert.True(t, got.Param == params[a.Name] && got.Message != "" && !strings.Contains(got.Message, ".py"),
				"%s: %+v, want the param %q", a.Name, got, params[a.Name])
		}
	}
}
