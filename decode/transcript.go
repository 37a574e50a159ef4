package decode

import "time"

// Transcript is what a client was sent of one answer, and when. Of an answer that several workers generated it is the whole;
// only Accepted and Began are the latest one's.
type Transcript struct {
	// Accepted says that the engine answered with status 200: it has taken the request over, and with it the duty to
	// notify a producer of KV that no decode needs it when the call is cut.
	Accepted bool
	// Started says that bytes have left for the client, in this round or one before.
	Started bool
	// Began says that this round had its first token, or the end of an answer that shows none.
	Began bool
	// Events is the number of stream events sent.
	Events int
	// Tokens is the number of generated tokens seen: the engine's own count where it reported one, else one per event
	// with content.
	Tokens int
	// Streamed is the number of those that came one by one: the first, and one for each call of Call.Gap.
	Streamed int
	// First and Last are the times of the first and the latest token; of an answer that shows none, of its end.
	First, Last time.Time
	// Reason is why the answer ended, of several choices the latest to end: see [openai.ChunkInfo]. Empty while it has not.
	Reason string
	// ReasoningTokens is how many of the tokens are reasoning, 0 where the engine does not say.
	ReasoningTokens int
	// PromptTokens and CachedTokens are the engine's usage figures, −1 while it has reported none.
	PromptTokens, CachedTokens int
}
