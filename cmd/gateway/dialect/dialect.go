// Package dialect converts between the APIs that clients speak and OpenAI's chat, which every engine speaks on both
// legs: Anthropic's Messages and OpenAI's Responses. A request becomes the body of a chat; the chat's answer, a stream
// in any pieces or a whole, becomes the client's form.
//
// Texts pass through as they are in the JSON, escapes included. What a dialect has and a chat has not is dropped, or
// refused where the answer would be another. Fields that no dialect knows are dropped.
//
// The package is pure: no goroutine, clock, I/O, lock or log.
package dialect

import (
	"github.com/tandem-pd/tandem/internal/openai"
)

// Options are what a conversion depends on besides the body.
type Options struct {
	// ID is the request's id. The ids of messages, items and calls derive from it. It needs no escapes in JSON.
	ID string
	// MaxBytes bounds the chat's body, in bytes; 0 is no bound.
	MaxBytes int
	// OneSystem reports whether a model's template takes one system message only, which leads; nil is false.
	OneSystem func(model string) bool
	// Now is the time in Unix seconds, which answers with a date carry.
	Now int64
}

// Request is a converted request.
type Request struct {
	// Chat is the body for /v1/chat/completions.
	Chat []byte
	// Stream requests events.
	Stream bool
	// Model is the name that was asked for.
	Model string
	// Answer converts what comes back.
	Answer Answer
}

// Answer converts the answer to one request. It is not for concurrent use.
type Answer interface {
	// Prompt sets the length of the prompt in tokens, before the first event. Without it a length is estimated, and
	// corrected at the end.
	Prompt(tokens int)
	// Events appends the client's events for p, the next piece of the chat's stream, to dst. A piece may end anywhere;
	// comments are dropped. The stream's end marker ends the answer, an error in it fails it; what follows is ignored.
	Events(dst, p []byte) []byte
	// Whole appends the client's form of a whole answer to dst. Its error is an *openai.Error.
	Whole(dst, body []byte) ([]byte, error)
	// Ping appends what keeps a silent stream alive, at any moment before its end.
	Ping(dst []byte) []byte
	// Fail ends a stream with an error: closes what is open and appends the error, nothing if the stream has ended.
	Fail(dst []byte, e *openai.Error) []byte
}
