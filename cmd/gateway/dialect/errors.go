package dialect

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"

	"github.com/tandem-pd/tandem/internal/openai"
)

// statusOverloaded is Anthropic's status for a fleet without room.
const statusOverloaded = 529

// messagesTypes are the classes of errors by status, as Anthropic's libraries name them. Without one, a status is the
// client's fault below 500, and the server's from there on.
var messagesTypes = map[int]string{
	http.StatusUnauthorized:          "authentication_error",
	http.StatusPaymentRequired:       "billing_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusRequestTimeout:        "timeout_error",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_error",
	http.StatusGatewayTimeout:        "timeout_error",
	statusOverloaded:                 "overloaded_error",
}

// MessagesStatus returns the HTTP status of an error in Anthropic's dialect: 529 where the fleet has no room, and 400
// where a chat has 422.
func MessagesStatus(e *openai.Error) int {
	switch {
	case e.Type == "overloaded_error":
		return statusOverloaded
	case e.Status == http.StatusUnprocessableEntity:
		return http.StatusBadRequest
	}
	return e.Status
}

// AppendMessagesError appends an error to dst as the body of an answer, or the data of an event, of Anthropic's
// dialect: {"type":"error","error":{"type","message"},"request_id"}. A request longer than the context is named in
// Anthropic's words, from which Claude Code learns how much to leave out.
func AppendMessagesError(dst []byte, e *openai.Error, requestID string) []byte {
	status := MessagesStatus(e)
	kind := messagesTypes[status]
	switch {
	case kind != "":
	case status >= http.StatusInternalServerError:
		kind = "api_error"
	default:
		kind = "invalid_request_error"
	}
	dst = append(append(dst, `{"type":"error","error":{"type":"`...), kind...)
	dst = openai.AppendQuoted(append(dst, `","message":`...), messagesText(e))
	dst = openai.AppendQuoted(append(dst, `},"request_id":`...), requestID)
	return append(dst, '}')
}

// overflowNumbers are the context, the prompt and the answer, in tokens, in the gateway's and the engines' words for a
// request that is longer than the context: openai's TooLong, vLLM's renderers/params.py of 0.33 and older forms, SGLang's
// srt/managers/tokenizer_manager.py of 0.5.23.
var overflowNumbers = [...]*regexp.Regexp{
	regexp.MustCompile(`context length (?:is |of |\()(?:only )?(\d+) tokens`),
	regexp.MustCompile(`(\d+) (?:in the messages|input tokens|tokens from the input)|input \((\d+) tokens`),
	regexp.MustCompile(`(\d+) (?:in the completion|output tokens|tokens for the completion)|too large: (\d+)`),
}

// messagesText returns the error's message. That of an overflow begins in Anthropic's words and ends in the code, which
// agents of other origins look for.
func messagesText(e *openai.Error) string {
	if e.Code != "context_length_exceeded" {
		return e.Message
	}
	var n [len(overflowNumbers)]int
	for i, of := range overflowNumbers {
		for _, digits := range of.FindStringSubmatch(e.Message) {
			if v, err := strconv.Atoi(digits); err == nil { // not the whole
				n[i] = v
			}
		}
	}
	limit, prompt, answer := n[0], n[1], n[2]
	switch {
	case limit == 0 || prompt == 0:
		return "prompt is too long: " + e.Message
	case prompt < limit:
		return fmt.Sprintf("input length and `max_tokens` exceed context limit: %d + %d > %d, decrease input length or `max_tokens` and "+
			"try again (%s)", prompt, answer, limit, e.Code)
	}
	return fmt.Sprintf("prompt is too long: %d tokens > %d maximum (%s)", prompt, limit, e.Code)
}
