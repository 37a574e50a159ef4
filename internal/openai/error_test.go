package openai

import (
	"encoding/json"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestErrorAppend(t *testing.T) {
	got := string(BadRequest("max_tokens", "%s must be %q", "max_tokens", "x").Append([]byte("> "), "r-1"))
	want := `> {"error":{"message":"max_tokens must be \"x\"","type":"invalid_request_error","code":null,"param":"max_tokens","request_id":"r-1"}}`
	assert.Equal(t, want, got)
}

// TestErrorKinds holds each constructor's status, type and code.
func TestErrorKinds(t *testing.T) {
	for _, tt := range []struct {
		e          *Error
		status     int
		kind, code string
	}{
		{BadRequest("", "x"), 400, "invalid_request_error", ""},
		{new(Request).TooLong(300000, 262144, true), 400, "invalid_request_error", "context_length_exceeded"},
		{Unauthorized(), 401, "authentication_error", "invalid_api_key"},
		{NotFoundModel("m"), 404, "not_found_error", "model_not_found"},
		{NotFound("GET", "/x", "GET /y lists the paths"), 404, "not_found_error", "not_found"},
		{MethodNotAllowed("GET", "/x"), 405, "invalid_request_error", "method_not_allowed"},
		{RequestTimeout(time.Second), 408, "timeout_error", "request_timeout"},
		{TooLarge(5), 413, "invalid_request_error", "request_too_large"},
		{UnsupportedMedia("Content-Encoding: gzip"), 415, "invalid_request_error", "unsupported_media_type"},
		{Internal(), 500, "server_error", "internal_error"},
		{BadGateway("c", "m"), 502, "server_error", "c"},
		{Unavailable("c", "m"), 503, "service_unavailable_error", "c"},
		{GatewayTimeout("c", "m"), 504, "timeout_error", "c"},
		{Overloaded(time.Second, "m"), 503, "overloaded_error", "server_is_overloaded"},
		{SlowDown(time.Second, "m"), 429, "rate_limit_error", "slow_down"},
	} {
		assert.Equal(t, []any{tt.status, tt.kind, tt.code}, []any{tt.e.Status, tt.e.kind(), tt.e.Code}, tt.e.Message)
		assert.NotEmpty(t, tt.e.Message)
	}
}

// TestOverflowIsRecognised by the patterns of agents: LiteLLM's litellm_core_utils/exception_mapping_utils.py, pi's
// packages/ai/src/utils/overflow.ts, LangChain's context_length_exceeded.
func TestOverflowIsRecognised(t *testing.T) {
	agents := []string{
		`This model's maximum context length is \d+ tokens`, `(?i)maximum context length is \d+ tokens`, `context_length_exceeded`,
		`However, you requested (at least )?\d+ tokens \((at least )?\d+ in the messages, \d+ in the completion\)`,
		`(?i)please reduce the length of the messages`,
	}
	chat := &Request{Endpoint: Chat, MaxTokens: 100}
	for _, tt := range []struct {
		e     *Error
		param string
	}{
		{chat.TooLong(1000, 1000, false), "messages"},
		{chat.TooLong(1000, 1000, true), "messages"},
		{chat.TooLong(999, 1000, false), "max_tokens"},
		{(&Request{Endpoint: Completions}).TooLong(1000, 1000, false), "prompt"},
	} {
		for _, pattern := range agents {
			assert.True(t, regexp.MustCompile(pattern).MatchString(tt.e.Message), "%q does not match %s", tt.e.Message, pattern)
		}
		assert.True(t, tt.e.Param == tt.param && tt.e.Code == "context_length_exceeded" && tt.e.Status == 400,
			"%+v, want the param %s", tt.e, tt.param)
	}
	for message, named := range map[string]bool{
		"The input (12 tokens) is longer than the model's context length (8 tokens).":              true, // SGLang 0.5.23
		"Requested token count exceeds the model's maximum context length of 8 tokens. You …":      true,
		"This model's maximum context length is 8 tokens. However, your prompt contains 9 input …": true, // vLLM 0.32
		"context must be a string": false,
	} {
		e := &Error{Status: 400, Code: "rejected_by_engine", Message: message}
		if e.NameOverflow(); (e.Code == "context_length_exceeded") != named || strings.Contains(e.Message, "context_length_exceeded") != named {
			t.Errorf("%+v", e)
		}
	}
}

// TestRetriesAreSpread: openai-python and openai-node read Retry-After-Ms before Retry-After and wait exactly as long.
func TestRetriesAreSpread(t *testing.T) {
	for after, most := range map[time.Duration]int{time.Millisecond: 1, time.Second: 2, time.Minute: 91} {
		exact := map[string]bool{}
		for range 100 {
			sent := map[string]string{}
			Overloaded(after, "m").SetRetry(func(name, value string) { sent[name] = value }, rand.Float64)
			seconds, err := strconv.Atoi(sent["Retry-After"])
			ms, errMs := strconv.Atoi(sent["Retry-After-Ms"])
			if least := max(1, int(after.Seconds())); err != nil || errMs != nil || seconds < least || seconds > most ||
				time.Duration(ms)*time.Millisecond < after || ms > int(1.5*1000*after.Seconds()) {
				t.Fatalf("%s: %v", after, sent)
			}
			exact[sent["Retry-After-Ms"]] = true
		}
		assert.True(t, after < time.Second || len(exact) >= 50, "%s: %d times for 100 clients", after, len(exact))
	}
	BadRequest("", "m").SetRetry(func(name, _ string) { t.Errorf("%s without a time", name) }, rand.Float64)
}

// FuzzError holds that an error is valid JSON with its five members, and gives back its texts, whatever they are.
func FuzzError(f *testing.F) {
	f.Add("plain", "code", "param", "id")
	f.Add("a\x00\x1f\"\\\n\u2028é😀\x7f", "\xff", "\xed\xa0\x80", "")
	f.Fuzz(func(t *testing.T, message, code, param, id string) {
		e := Error{Status: 400, Message: message, Code: code, Param: param}
		var got struct {
			Error map[string]*string `json:"error"`
		}
		require.NoError(t, json.Unmarshal(e.Append(nil, id), &got))
		require.Len(t, got.Error, 5, "members")
		for name, want := range map[string]string{"code": code, "param": param, "request_id": id} {
			if v := got.Error[name]; (v == nil) != (want == "") || v != nil && *v != clean(want) {
				t.Fatalf("%s is %v, want %q", name, v, want)
			}
		}
		if got := got.Error["message"]; got == nil || *got != clean(message) {
			t.Fatalf("message is %v, want %q", got, clean(message))
		}
	})
}

// clean replaces each byte that is no UTF-8, one by one.
func clean(s string) string {
	var b strings.Builder
	for _, r := range s {
		b.WriteRune(r)
	}
	return b.String()
}
