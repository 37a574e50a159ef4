// Package openai speaks the OpenAI API's wire: it scans request bodies, edits them in place, reads and rewrites
// answers, splits event streams and writes errors.
//
// Bytes pass through. Nothing here decodes a body into maps and marshals it again: Scan walks a body once, checks it
// and remembers where each top-level member lies; an Edit splices new values between the bytes that were there. Key
// order, unknown fields, 64-bit integers and white space survive as the client wrote them. Answers are treated the
// same way.
//
// All JSON is read by one strict, non-recursive cursor (RFC 8259). What it accepts, encoding/json accepts; beyond
// that it refuses \u escapes of lone surrogates, which stand for no text, and nesting deeper than a limit.
package openai

// Endpoint is one of the two generating endpoints.
type Endpoint uint8

const (
	// Chat is /v1/chat/completions.
	Chat Endpoint = iota
	// Completions is /v1/completions.
	Completions
)

// Path returns the endpoint's HTTP path, the same on the gateway and on the engines behind it.
func (e Endpoint) Path() string {
	if e == Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// String returns the endpoint's name for logs and metric labels.
func (e Endpoint) String() string {
	if e == Chat {
		return "chat"
	}
	return "completions"
}
