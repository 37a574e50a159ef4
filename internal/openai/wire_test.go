package openai

import "encoding/json"

// completionObject is a whole answer of /v1/completions, and a chunk of its stream, which has the same form. A chunk
// that is not the last has no usage.
type completionObject struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`  // text_completion
	Created           int64              `json:"created"` // seconds since 1970
	Model             string             `json:"model"`
	Choices           []completionChoice `json:"choices"`
	Usage             *Usage             `json:"usage,omitempty"`
	SystemFingerprint string             `json:"system_fingerprint,omitempty"`
	// KVTransferParams is vLLM's hand-off metadata; only whole answers carry it.
	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// completionChoice is one of a completion's answers. FinishReason is nil until the last chunk: stop, length, abort or
// error.
type completionChoice struct {
	Index        int       `json:"index"`
	Text         string    `json:"text"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
	// StopReason is vLLM's: the stop string, or the id of the stop token.
	StopReason any `json:"stop_reason,omitempty"`
	// TokenIDs is vLLM's answer to return_token_ids.
	TokenIDs []uint32 `json:"token_ids,omitempty"`
}

// chatObject is a whole answer of /v1/chat/completions.
type chatObject struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`  // chat.completion
	Created           int64           `json:"created"` // seconds since 1970
	Model             string          `json:"model"`
	Choices           []chatChoice    `json:"choices"`
	Usage             *Usage          `json:"usage,omitempty"`
	SystemFingerprint string          `json:"system_fingerprint,omitempty"`
	KVTransferParams  json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// chatChoice is one of a chat's answers.
type chatChoice struct {
	Index        int         `json:"index"`
	Message      ChatMessage `json:"message"`
	Logprobs     *struct{}   `json:"logprobs"`
	FinishReason *string     `json:"finish_reason"`
	StopReason   any         `json:"stop_reason,omitempty"`
	TokenIDs     []uint32    `json:"token_ids,omitempty"`
}

// chatChunkObject is one chunk of a chat's stream.
type chatChunkObject struct {
	ID                string            `json:"id"`
	Object            string            `json:"object"`  // chat.completion.chunk
	Created           int64             `json:"created"` // seconds since 1970
	Model             string            `json:"model"`
	Choices           []chatChunkChoice `json:"choices"`
	Usage             *Usage            `json:"usage,omitempty"`
	SystemFingerprint string            `json:"system_fingerprint,omitempty"`
}

// chatChunkChoice is one choice's part of a chunk.
type chatChunkChoice struct {
	Index        int       `json:"index"`
	Delta        ChatDelta `json:"delta"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
	StopReason   any       `json:"stop_reason,omitempty"`
	TokenIDs     []uint32  `json:"token_ids,omitempty"`
}
