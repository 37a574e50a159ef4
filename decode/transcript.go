package decode

import "time"

// Transcript records what a client was sent of one answer, and when, over all workers that generated it. Accepted and
// HasToken are of the latest only.
type Transcript struct {
	// Accepted reports that the engine answered with status 200: it must then notify a KV producer when the call is
	// cut.
	Accepted bool
	// Started reports that bytes were sent to the client, in this or an earlier round.
	Started bool
	// HasToken reports that this round had its first token, or the end of an answer without any.
	HasToken bool
	// Events is the number of stream events sent.
	Events int
	// Tokens is the number of generated tokens: the engine's count if it reports one, else one per event with
	// content.
	Tokens int
	// Streamed is the number of those that arrived one by one: the first, and one per call of Client.NextToken.
	Streamed int
	// First and Last are the times of the first and the latest token, or of the end of an answer without any.
	First, Last time.Time
	// Reason is the finish reason of the choice that ended last: see [openai.ChunkInfo]. Empty before.
	Reason string
	// ReasoningTokens is how many of the tokens are reasoning, 0 if unreported.
	ReasoningTokens int
	// PromptTokens and CachedTokens are the engine's usage, −1 while unreported.
	PromptTokens, CachedTokens int
}
