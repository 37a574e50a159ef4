// Package openai implements the OpenAI API on the wire: it scans request bodies, edits them in place, reads and
// rewrites answers, splits event streams and writes errors.
//
// Bytes pass through: Scan walks a body once, checks it and records the position of each top-level member; an Edit
// splices new values between the original bytes. Key order, unknown fields, 64-bit integers and white space survive.
// Answers are treated the same way.
//
// One strict, non-recursive cursor parses all JSON (RFC 8259). It accepts a subset of encoding/json: no \u escapes of
// lone surrogates, and no nesting deeper than a limit.
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
