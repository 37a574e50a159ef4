package decode

import (
	"cmp"

	"github.com/tandem-pd/tandem/internal/openai"
)

// ends counts the choices that an event ends, and keeps why.
func (t *tap) ends(info *openai.ChunkInfo) {
	t.finished += info.Finished
	t.transcript.Reason = cmp.Or(info.Reason, t.transcript.Reason)
}

// usage takes the engine's own figures over, where there are any, and shows the prompt's ids where they are there.
func (t *tap) usage(info *openai.ChunkInfo) {
	d, given := t.call.Draft, t.call.Draft.had()
	moved := d != nil && d.moved
	if info.PromptIDs != nil && t.call.Prompt != nil && !moved {
		t.call.Prompt(info.PromptIDs)
	}
	if !info.Usage {
		return
	}
	t.transcript.PromptTokens = max(0, info.PromptTokens-given) // the engine takes what was generated before for the prompt's
	t.transcript.CachedTokens, t.transcript.ReasoningTokens = info.CachedTokens, info.ReasoningTokens
	if moved {
		t.transcript.CachedTokens, t.transcript.ReasoningTokens = min(info.CachedTokens, t.transcript.PromptTokens), d.reasoned
	}
	t.summed = t.summed || info.Choices == 0
	if n := info.CompletionTokens + given; n > t.transcript.Tokens {
		t.transcript.Tokens = n
	}
}
