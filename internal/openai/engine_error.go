package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EngineError is an error as an engine words it, in the body of a 4xx or 5xx or in an event of a stream. Its message
// may quote the prompt.
type EngineError struct {
	// Status is the HTTP status of the error's code or type, 400 to 599; 0 if neither has one.
	Status int
	// Message is the reason, and Param names the field; empty where absent.
	Message, Param string
	// Died: the engine's core has died and its server is about to follow, whatever the status: releases of vLLM call
	// that a 400.
	Died bool
	// Failed: the engine itself failed, whatever the answer's status: TensorRT-LLM calls any exception a 400. Status is
	// 500 then.
	Failed bool
	// NotLoaded: the engine lacks the requested LoRA adapter: SGLang calls that a 400. Status is 404 then.
	NotLoaded bool
}

// sglangNotLoaded is how SGLang words it (srt/managers/tokenizer_manager.py and srt/lora/lora_registry.py in 0.5.23):
// of an adapter that was never loaded or was unloaded, and of one that goes in the same moment.
var sglangNotLoaded = []string{"Got LoRA adapter that has never been loaded: ", "The following requested LoRA adapters are not loaded: "}

// tensorRTFailed is how TensorRT-LLM words a transfer that failed (_torch/pyexecutor/py_executor.py). A client cannot
// make an error begin like that either.
const tensorRTFailed = "Error in kv cache transfer"

// vllmDied is how vLLM's EngineDeadError begins (vllm/v1/engine/exceptions.py). A client cannot make an error begin
// like that, by a field that it quotes.
const vllmDied = "EngineCore encountered an issue"

// ReadEngineError parses an error in vLLM's form, {"error":{"message","type","param","code"}}, in SGLang's, with those
// members at the top, in TensorRT-LLM's for an invalid field, {"error": "text"}, or in FastAPI's, {"detail": "text"} or
// {"detail":[{"loc","msg"}]}, whose first item counts. Anything else gives the zero EngineError.
func ReadEngineError(data []byte) EngineError {
	type fields struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Param   string          `json:"param"`
		Code    json.RawMessage `json:"code"`
	}
	var body struct {
		fields
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	_ = json.Unmarshal(data, &body) // a member of another type is as good as absent
	inner := body.fields
	if len(body.Error) > 0 {
		_ = json.Unmarshal(body.Error, &inner) // a number has no message
		_ = json.Unmarshal(body.Error, &inner.Message)
	}
	if len(body.Error) == 0 && inner.Message == "" {
		inner.Message, inner.Param = readDetail(body.Detail)
	}
	// SGLang sends FastAPI's RequestValidationError as text, which names the place in the server's source at its end.
	inner.Message, _, _ = strings.Cut(inner.Message, "\n\n  File \"")
	if place, ok := strings.CutPrefix(inner.Param, "body."); ok { // vLLM since 0.32
		inner.Param = fieldOf(strings.Split(place, "."))
	} else if inner.Param == "" {
		inner.Param = fieldOf(readPlace(inner.Message))
	}
	e := EngineError{
		Status: statusOf(string(inner.Code), inner.Type), Message: inner.Message, Param: inner.Param,
		Died: strings.HasPrefix(inner.Message, vllmDied), Failed: strings.HasPrefix(inner.Message, tensorRTFailed),
	}
	e.NotLoaded = slices.ContainsFunc(sglangNotLoaded, func(begins string) bool { return strings.HasPrefix(e.Message, begins) })
	switch {
	case e.Failed:
		e.Status = http.StatusInternalServerError
	case e.NotLoaded:
		e.Status = http.StatusNotFound
	}
	return e
}

// readDetail parses FastAPI's error.
func readDetail(detail json.RawMessage) (message, param string) {
	if json.Unmarshal(detail, &message) == nil {
		return message, ""
	}
	var checks []struct {
		Place []any  `json:"loc"`
		Text  string `json:"msg"`
	}
	if json.Unmarshal(detail, &checks) != nil || len(checks) == 0 {
		return "", ""
	}
	var parts []string
	for i, part := range checks[0].Place {
		if i > 0 || part != "body" {
			parts = append(parts, fmt.Sprint(part))
		}
	}
	return checks[0].Text, fieldOf(parts)
}

// placePart is one part of a place as Python prints it, and the separator. A type's name may contain commas.
var placePart = regexp.MustCompile(`^(?:'([^']*)'|"([^"]*)"|(\d+))(, |,?\))`)

// readPlace returns the place of the first pydantic error, as Python prints it, "… 'loc': ('body', 'messages', 0,
// 'role') …": nil without one.
func readPlace(text string) (parts []string) {
	_, place, _ := strings.Cut(text, "'loc': ('body', ")
	for {
		m := placePart.FindStringSubmatch(place)
		if m == nil {
			return nil
		}
		parts = append(parts, m[1]+m[2]+m[3])
		if place = place[len(m[0]):]; m[4] != ", " {
			return parts
		}
	}
}

// fieldOf joins a place's parts to a path, messages[0].role. The names of the types that pydantic tried, list[int],
// function-after[…], int or the name of a class, are left out. A place in no field, the number of a byte, is empty.
func fieldOf(parts []string) (field string) {
	for _, part := range parts {
		_, err := strconv.Atoi(part)
		switch {
		case part == "" || strings.ContainsAny(part, "[({-") || part[0] >= 'A' && part[0] <= 'Z' || slices.Contains(pythonKinds, part):
		case err == nil && field != "":
			field += "[" + part + "]"
		case err != nil:
			field += "." + part
		}
	}
	return strings.TrimPrefix(field, ".")
}

// pythonKinds are the types that pydantic names without brackets.
var pythonKinds = []string{"bool", "bytes", "dict", "float", "int", "list", "none", "nullable", "set", "str", "tuple"}

// statusOf returns the status of a code, a number or a string of one. If the code is a word or absent, the type
// decides.
func statusOf(code, kind string) int {
	if n, err := strconv.Atoi(strings.Trim(code, `"`)); err == nil && n >= 400 && n <= 599 {
		return n
	}
	return errorTypes[kind]
}

// errorTypes are the engines' error types that stand for one status, in vLLM's spelling and in OpenAI's.
var errorTypes = map[string]int{
	"BadRequestError": 400, "invalid_request_error": 400,
	"NotFoundError": 404, "not_found_error": 404,
	"UnprocessableEntityError": 422,
	"RateLimitError":           429, "rate_limit_error": 429,
	"InternalServerError": 500, "server_error": 500,
	"ServiceUnavailableError": 503, "overloaded_error": 503,
}
