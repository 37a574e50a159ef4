package openai

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Error is a failure as a client gets it. Its message names fields and numbers, never a prompt.
type Error struct {
	// Status is the HTTP status, 400 to 599.
	Status int
	// Message is the reason and names the field.
	Message string
	// Type is the class of error, as OpenAI names them; empty: the status's.
	Type string
	// Code names the error for programs; empty: null.
	Code string
	// Param is the path of the field that is to blame, such as nvext.agent_hints.priority or messages[2].content;
	// empty: null.
	Param string
	// RetryAfter is when to try again, 0 if unknown.
	RetryAfter time.Duration
	// Final makes client libraries not retry by themselves.
	Final bool
}

// BadRequest is a 400 for the field at param, empty for the whole request. The message must not repeat the client's
// values, only its keys.
func BadRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// badJSON is a 400 for a body that cannot be read as a request at all.
func badJSON(format string, args ...any) *Error {
	e := BadRequest("", format, args...)
	e.Code = "invalid_json"
	return e
}

// PromptField names the body's field that holds the prompt.
func (r *Request) PromptField() string {
	if r.Endpoint == Chat || r.Prompt.Kind == PromptMessages {
		return "messages"
	}
	return "prompt"
}

// TooLong is the 400 for a request whose prompt and answer are longer than the context together; atLeast means that the
// prompt may be longer than promptTokens. Agents compact their history when they recognise the message: its words are
// OpenAI's and vLLM's, which LiteLLM, LangChain and pi match, and it ends in the code for libraries that hide the body.
// Where the prompt alone fits, max_tokens is to blame.
func (r *Request) TooLong(promptTokens, context int, atLeast bool) *Error {
	param, approx, answer := r.PromptField(), "", max(1, r.MaxTokens)
	if promptTokens < context {
		param = "max_tokens"
	}
	if atLeast {
		approx = "at least "
	}
	e := BadRequest(param, "This model's maximum context length is %d tokens. However, you requested %s%d tokens (%[2]s%[4]d in the messages, %d in the completion). "+
		"Please reduce the length of the messages or completion. (context_length_exceeded)", context, approx, promptTokens+answer,
		promptTokens, answer)
	e.Code = "context_length_exceeded"
	return e
}

// overflows are parts of the messages by which vLLM and SGLang refuse a request that is longer than the context
// (vllm/renderers/params.py, sglang/srt/managers/tokenizer_manager.py).
var overflows = []string{"maximum context length", "longer than the model's context length", "exceeds the model's context length"}

// NameOverflow gives an engine's refusal of a request that is too long the code of TooLong, in the message too.
func (e *Error) NameOverflow() {
	if slices.ContainsFunc(overflows, func(part string) bool { return strings.Contains(e.Message, part) }) {
		*e = Error{Status: http.StatusBadRequest, Type: e.Type, Code: "context_length_exceeded",
			Message: e.Message + " (context_length_exceeded)", Param: e.Param}
	}
}

// Unauthorized is the 401 for a missing or unknown API key.
func Unauthorized() *Error {
	return &Error{Status: http.StatusUnauthorized, Code: "invalid_api_key",
		Message: "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"}
}

// NotFoundModel is the 404 for a model no worker serves.
func NotFoundModel(model string) *Error {
	return &Error{Status: http.StatusNotFound, Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("the model %q does not exist; GET /v1/models lists those that do", shown([]byte(model)))}
}

// NotServed is the 404 for an endpoint that the model's engine does not have.
func NotServed(e Endpoint) *Error {
	return &Error{Status: http.StatusNotFound, Code: "endpoint_not_served",
		Message: "the engine of this model does not serve " + e.Path()}
}

// NotFound is the 404 for a path without a route; found is where there is one.
func NotFound(method, path, found string) *Error {
	return &Error{Status: http.StatusNotFound, Code: "not_found",
		Message: fmt.Sprintf("there is no %s %s here; %s", shown([]byte(method)), shown([]byte(path)), found)}
}

// MethodNotAllowed is the 405 for a path that exists with another method.
func MethodNotAllowed(method, path string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed",
		Message: fmt.Sprintf("%s does not take %s", shown([]byte(path)), shown([]byte(method)))}
}

// RequestTimeout is the 408 for a body that arrived too slowly.
func RequestTimeout(limit time.Duration) *Error {
	return &Error{Status: http.StatusRequestTimeout, Code: "request_timeout",
		Message: fmt.Sprintf("the request was not complete after %s", limit)}
}

// TooLarge is the 413 for a body over limit bytes.
func TooLarge(limit int) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large",
		Message: fmt.Sprintf("the body is larger than %d bytes", limit)}
}

// UnsupportedMedia is the 415 for a body that is not JSON, plain or in a known compression; what names the header that
// declares it.
func UnsupportedMedia(what string) *Error {
	return &Error{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type",
		Message: fmt.Sprintf("the body must be JSON, plain or compressed by gzip or zstd; it came with %s", shown([]byte(what)))}
}

// Internal is the 500 for a failure of the gateway itself. The details belong in its log.
func Internal() *Error {
	return &Error{Status: http.StatusInternalServerError, Code: "internal_error",
		Message: "the gateway failed; its log has this request's id"}
}

// BadGateway is the 502 for a worker that failed.
func BadGateway(code, message string) *Error {
	return &Error{Status: http.StatusBadGateway, Code: code, Message: message}
}

// Loop is the 508 for a request that returns to a gateway on its way.
func Loop() *Error {
	return &Error{Status: http.StatusLoopDetected, Code: "gateway_loop", Final: true,
		Message: "the request has come through this gateway before: a gateway is listed as another's worker"}
}

// UnavailableRetry is the Retry-After of a 503: as long as a worker that refused a connection is avoided.
const UnavailableRetry = 5 * time.Second

// Unavailable is the 503 for a request that no worker can serve at present, but may serve after UnavailableRetry.
func Unavailable(code, message string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Code: code, Message: message, RetryAfter: UnavailableRetry}
}

// MemoryTaken is the 503 for a request of which the gateway would hold more than it has memory for.
func MemoryTaken() *Error {
	return Unavailable("body_budget_exhausted",
		"the gateway's memory for long answers and many prompts, a quarter of GOMEMLIMIT, or 512 MiB, is taken; try again later")
}

// GatewayTimeout is the 504 for a time-out.
func GatewayTimeout(code, message string) *Error {
	return &Error{Status: http.StatusGatewayTimeout, Code: code, Message: message}
}

// Overloaded is the 503 for a fleet that has no room, by the code that OpenAI's clients retry. Balancers retry a 503
// and pass the 529 of Anthropic's dialect on.
func Overloaded(retryAfter time.Duration, message string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: "overloaded_error", Code: "server_is_overloaded", Message: message,
		RetryAfter: retryAfter}
}

// SlowDown is the 429 for a client whose own load is the cause.
func SlowDown(retryAfter time.Duration, message string) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: "slow_down", Message: message, RetryAfter: retryAfter}
}

// types are the classes of the statuses that are not just any failure of the client's or the server's.
var types = map[int]string{
	http.StatusUnauthorized:       "authentication_error",
	http.StatusForbidden:          "permission_error",
	http.StatusNotFound:           "not_found_error",
	http.StatusRequestTimeout:     "timeout_error",
	http.StatusServiceUnavailable: "service_unavailable_error",
	http.StatusGatewayTimeout:     "timeout_error",
}

func (e *Error) kind() string {
	switch t := types[e.Status]; {
	case e.Type != "":
		return e.Type
	case t != "":
		return t
	case e.Status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// SetRetry sets the headers Retry-After (whole seconds, at least 1) and Retry-After-Ms, which OpenAI's and Anthropic's
// libraries prefer. Both are random between RetryAfter and 1.5 times as much: libraries wait exactly that long, and
// would all return at the same moment. random is in [0, 1).
func (e *Error) SetRetry(set func(name, value string), random func() float64) {
	if e.RetryAfter > 0 {
		wait := e.RetryAfter.Seconds() * (1 + random()/2)
		set("Retry-After", strconv.Itoa(max(1, int(wait+random()))))
		set("Retry-After-Ms", strconv.Itoa(int(1000*wait)))
	}
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s", e.Status, e.kind())
	if e.Code != "" {
		b.WriteString(" " + e.Code)
	}
	return b.String() + ": " + e.Message
}

// Append appends the error as a response's body, or a stream's last event, to dst:
// {"error":{"message","type","code","param","request_id"}}. It is always valid JSON; empty code, param and requestID
// are null.
func (e *Error) Append(dst []byte, requestID string) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = appendQuoted(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendQuoted(dst, e.kind())
	dst = append(dst, `,"code":`...)
	dst = appendQuotedOrNull(dst, e.Code)
	dst = append(dst, `,"param":`...)
	dst = appendQuotedOrNull(dst, e.Param)
	dst = append(dst, `,"request_id":`...)
	dst = appendQuotedOrNull(dst, requestID)
	return append(dst, "}}"...)
}

func appendQuotedOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendQuoted(dst, s)
}
