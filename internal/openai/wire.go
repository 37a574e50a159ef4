package openai

// Usage is the tokens an answer took.
type Usage struct {
	PromptTokens        int                  `json:"prompt_tokens"`
	CompletionTokens    int                  `json:"completion_tokens"`
	TotalTokens         int                  `json:"total_tokens"`
	PromptTokensDetails *PromptTokensDetails `json:"prompt_tokens_details,omitempty"`

	CompletionTokensDetails *CompletionTokensDetails `json:"completion_tokens_details,omitempty"`
}

// CompletionTokensDetails counts the tokens that an answer's thought has.
type CompletionTokensDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// PromptTokensDetails counts the prompt's tokens that were not computed again.
type PromptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// Model is one entry of GET /v1/models.
type Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`  // model
	Created int64  `json:"created"` // seconds since 1970
	OwnedBy string `json:"owned_by"`
	// Parent is the base model of an adapter, left out of other models.
	Parent string `json:"parent,omitempty"`
	// MaxModelLen is vLLM's: the context in tokens, left out where unknown.
	MaxModelLen int `json:"max_model_len,omitempty"`
}

// ModelList is the answer to GET /v1/models.
type ModelList struct {
	Object string  `json:"object"` // list
	Data   []Model `json:"data"`
}
