package decode

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/tandem-pd/tandem/fault"
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
	if n := info.CompletionTokens + given; n > t.transcript.Tokens && !(t.call.Stream && info.Counts()) { // else tokens has them
		t.transcript.Tokens = n
	}
}

// counts reports whether an event has the usage so far, and whether the client is not to see that. Hidden usage is none to the rest.
func (t *tap) counts(info *openai.ChunkInfo) (counts, hides bool) {
	counts = info.Counts()
	hides = counts && t.call.HideUsage
	info.Usage = info.Usage && !hides
	return counts, hides
}

// tokens books the tokens of an event. One that counts may bring several, or more of the text of those that came before.
func (t *tap) tokens(info *openai.ChunkInfo, counts bool) {
	if !counts {
		if info.Content {
			t.token(max(1, info.Tokens))
		}
		return
	}
	t.transcript.CachedTokens, t.transcript.ReasoningTokens = info.CachedTokens, info.ReasoningTokens
	switch n := info.CompletionTokens + t.call.Draft.had() - t.transcript.Tokens; {
	case info.Content && (n > 0 || !t.transcript.Began):
		t.token(max(1, n))
	case info.Finished > 0: // what is no text
		t.transcript.Tokens += max(0, n)
	}
}

// nothing reports whether an answer that ends, by its usage, has not even an end token though its prompt's KV was taken over: the
// hand-off has failed within an engine that reports no error.
func (t *tap) nothing(info *openai.ChunkInfo) bool {
	return t.call.HandedOff && !info.Content && info.PromptTokens > 0 && info.CompletionTokens == 0
}

// errNoTokens is the end of an answer of nothing.
var errNoTokens = fmt.Errorf("%w: it took the prompt's KV over and generated no token", fault.ErrEngine)

// hide gives an event the form that it has without continuous_usage_stats, in t.plain, and returns its data: SGLang's completions
// have null then, and its chats nothing.
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
