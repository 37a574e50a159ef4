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

import (
	"iter"
	"net/http"
)

// Endpoint is an endpoint whose requests engines answer.
type Endpoint uint8

// The endpoints. The first two generate tokens; each of the others has one leg.
const (
	Chat Endpoint = iota
	Completions
	Embeddings
	Rerank
	Score
	Classify
	Pooling
	Tokenize
	Detokenize
	TokenizerInfo
)

// endpoints are their names for logs and metric labels, and their paths, the engines' first.
var endpoints = [...][]string{
	Chat:          {"chat", "/v1/chat/completions"},
	Completions:   {"completions", "/v1/completions"},
	Embeddings:    {"embeddings", "/v1/embeddings"},
	Rerank:        {"rerank", "/v1/rerank", "/rerank", "/v2/rerank"},
	Score:         {"score", "/v1/score", "/score"},
	Classify:      {"classify", "/classify", "/v1/classify"},
	Pooling:       {"pooling", "/pooling"},
	Tokenize:      {"tokenize", "/tokenize", "/v1/tokenize"},
	Detokenize:    {"detokenize", "/detokenize", "/v1/detokenize"},
	TokenizerInfo: {"tokenizer_info", "/tokenizer_info"},
}

// Endpoints yields all endpoints.
func Endpoints() iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for e := range endpoints {
			if !yield(Endpoint(e)) {
				return
			}
		}
	}
}

// Path returns the endpoint's HTTP path, which the engines have too.
func (e Endpoint) Path() string { return endpoints[e][1] }

// PathAt returns the path at an engine: SGLang's /classify takes a body of its own.
func (e Endpoint) PathAt(engine string) string {
	if e == Classify && engine == "sglang" {
		return "/v1/classify"
	}
	return e.Path()
}

// Paths returns the paths at which clients find the endpoint.
func (e Endpoint) Paths() []string { return endpoints[e][1:] }

// Method returns the endpoint's HTTP method.
func (e Endpoint) Method() string {
	if e == TokenizerInfo {
		return http.MethodGet
	}
	return http.MethodPost
}

// Generates reports whether the endpoint's answers are generated tokens. Others are computed by one worker, at once.
func (e Endpoint) Generates() bool { return e <= Completions }

// Computes reports whether the model computes the endpoint's answers. Others need only a tokenizer.
func (e Endpoint) Computes() bool { return e <= Pooling }

// String returns the endpoint's name for logs and metric labels.
func (e Endpoint) String() string { return endpoints[e][0] }
