package openai

import "encoding/json"

// Usage is the tokens an answer took.
type Usage struct {
	PromptTokens        int                  `json:"prompt_tokens"`
	CompletionTokens    int                  `json:"completion_tokens"`
	TotalTokens         int                  `json:"total_tokens"`
	PromptTokensDetails *PromptTokensDetails `json:"prompt_tokens_details,omitempty"`
}

// PromptTokensDetails tells how many of the prompt's tokens were not computed
// anew.
type PromptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// CompletionObject is a whole answer of /v1/completions, and a chunk of its
// stream, which has the same form. A chunk that is not the last has no usage.
type CompletionObject struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`  // text_completion
	Created           int64              `json:"created"` // seconds since 1970
	Model             string             `json:"model"`
	Choices           []CompletionChoice `json:"choices"`
	Usage             *Usage             `json:"usage,omitempty"`
	SystemFingerprint string             `json:"system_fingerprint,omitempty"`
	// KVTransferParams is vLLM's hand-off metadata; only whole answers carry it.
	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// CompletionChoice is one of a completion's answers. FinishReason is nil until
// the last chunk: stop, length, abort or error.
type CompletionChoice struct {
	Index        int       `json:"index"`
	Text         string    `json:"text"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
	// StopReason is vLLM's: the stop string, or the id of the stop token.
	StopReason any `json:"stop_reason,omitempty"`
	// TokenIDs is vLLM's answer to return_token_ids.
	TokenIDs []uint32 `json:"token_ids,omitempty"`
}

// ChatObject is a whole answer of /v1/chat/completions.
type ChatObject struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`  // chat.completion
	Created           int64           `json:"created"` // seconds since 1970
	Model             string          `json:"model"`
	Choices           []ChatChoice    `json:"choices"`
	Usage             *Usage          `json:"usage,omitempty"`
	SystemFingerprint string          `json:"system_fingerprint,omitempty"`
	KVTransferParams  json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// ChatChoice is one of a chat's answers.
type ChatChoice struct {
	Index        int         `json:"index"`
	Message      ChatMessage `json:"message"`
	Logprobs     *struct{}   `json:"logprobs"`
	FinishReason *string     `json:"finish_reason"`
	StopReason   any         `json:"stop_reason,omitempty"`
	TokenIDs     []uint32    `json:"token_ids,omitempty"`
}

// ChatMessage is an answer's message.
type ChatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ChatChunkObject is one chunk of a chat's stream.
type ChatChunkObject struct {
	ID                string            `json:"id"`
	Object            string            `json:"object"`  // chat.completion.chunk
	Created           int64             `json:"created"` // seconds since 1970
	Model             string            `json:"model"`
	Choices           []ChatChunkChoice `json:"choices"`
	Usage             *Usage            `json:"usage,omitempty"`
	SystemFingerprint string            `json:"system_fingerprint,omitempty"`
}

// ChatChunkChoice is one choice's part of a chunk.
type ChatChunkChoice struct {
	Index        int       `json:"index"`
	Delta        ChatDelta `json:"delta"`
	Logprobs     *struct{} `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
	StopReason   any       `json:"stop_reason,omitempty"`
	TokenIDs     []uint32  `json:"token_ids,omitempty"`
}

// ChatDelta is what a chunk adds to a message. Only a choice's first chunk has
// a role.
type ChatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// Model is one entry of GET /v1/models.
type Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`  // model
	Created int64  `json:"created"` // seconds since 1970
	OwnedBy string `json:"owned_by"`
	// MaxModelLen is vLLM's: the context in tokens, left out where unknown.
	MaxModelLen int `json:"max_model_len,omitempty"`
}

// ModelList is the answer to GET /v1/models.
type ModelList struct {
	Object string  `json:"object"` // list
	Data   []Model `json:"data"`
}
