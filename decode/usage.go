package decode

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
)

// ends counts the choices that an event finishes, and stores the reason.
func (t *tap) ends(info *openai.ChunkInfo) {
	t.finished += info.Finished
	t.transcript.Reason = cmp.Or(info.Reason, t.transcript.Reason)
}

// usage stores the engine's usage, if reported, and passes on the prompt's ids.
func (t *tap) usage(info *openai.ChunkInfo) {
	d, had := t.call.Draft, t.call.Draft.had()
	resumed := d != nil && d.resumed
	if info.PromptIDs != nil && !resumed {
		t.call.ComputedPrompt(info.PromptIDs)
	}
	if !info.Usage {
		return
	}
	t.transcript.PromptTokens = max(0, info.PromptTokens-had) // the engine counts earlier output as prompt
	t.transcript.CachedTokens, t.transcript.ReasoningTokens = info.CachedTokens, info.ReasoningTokens
	if resumed {
		t.transcript.CachedTokens, t.transcript.ReasoningTokens = min(info.CachedTokens, t.transcript.PromptTokens), d.reasoned
	}
	t.summed = t.summed || info.Choices == 0
	if n := info.CompletionTokens + had; n > t.transcript.Tokens && !(t.call.Stream && info.Counts()) { // else tokens has them
		t.transcript.Tokens = n
	}
}

// counts reports whether an event has the running usage, and whether to hide it. Hidden usage is cleared in info.
func (t *tap) counts(info *openai.ChunkInfo) (counts, hides bool) {
	counts = info.Counts()
	hides = counts && t.call.HideUsage
	info.Usage = info.Usage && !hides
	return counts, hides
}

// tokens books the tokens of an event. With running usage an event may have several, or more text of earlier ones.
func (t *tap) tokens(info *openai.ChunkInfo, counts bool) {
	if !counts {
		if info.Content {
			t.token(max(1, info.Tokens))
		}
		return
	}
	t.transcript.CachedTokens, t.transcript.ReasoningTokens = info.CachedTokens, info.ReasoningTokens
	switch n := info.CompletionTokens + t.call.Draft.had() - t.transcript.Tokens; {
	case info.Content && (n > 0 || !t.transcript.HasToken):
		t.token(max(1, n))
	case info.Finished > 0: // tokens without text
		t.transcript.Tokens += max(0, n)
	}
}

// nothing reports whether an answer ends without any token although its prompt's KV was taken over: the hand-off
// failed within an engine that reports no error.
func (t *tap) nothing(info *openai.ChunkInfo) bool {
	return t.call.HandedOff && !info.Content && info.PromptTokens > 0 && info.CompletionTokens == 0
}

// errNoTokens ends an answer without tokens.
var errNoTokens = fmt.Errorf("%w: it took the prompt's KV over and generated no token", fault.ErrEngine)

// hide writes an event without continuous_usage_stats to t.plain and returns its data: SGLang's completions then have
// null, its chats nothing.
func (t *tap) hide(info *openai.ChunkInfo, data []byte) []byte {
	t.plain = info.HideUsage(append(t.plain[:0], dataField...), data, strings.HasSuffix(t.call.Leg.Path, "/v1/completions"))
	data = t.plain[len(dataField):]
	if bytes.IndexByte(data, '\n') >= 0 || bytes.IndexByte(data, '\r') >= 0 { // a field of several lines
		t.plain = openai.AppendEvent(nil, data)
		return data
	}
	t.plain = append(t.plain, "\n\n"...)
	return t.plain[len(dataField) : len(t.plain)-2]
}
