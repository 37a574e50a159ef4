package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"unsafe"
)

// Request is the part of a request body that routing needs. Scan makes it; the rest of the body stays in Raw, for Field
// and Edit.
type Request struct {
	Endpoint Endpoint
	// Raw is the original body. It must not change.
	Raw []byte
	// Model is the model's name, empty where the client leaves it to the gateway.
	Model string
	// Adapter is the LoRA adapter of Model for the answer, empty for none. Scan leaves it empty: the body alone does
	// not reveal adapters.
	Adapter string
	// Prompt is the text, the token ids or the messages.
	Prompt Prompt
	// Stream requests server-sent events.
	Stream bool
	// IncludeUsage requests a last chunk with the usage (stream_options).
	IncludeUsage bool
	// ContinuousUsage requests the usage so far in each chunk (stream_options).
	ContinuousUsage bool
	// MaxTokens is the most tokens to generate, 1 to 2^31−1, 0 without a limit. On chat max_completion_tokens takes
	// precedence over the older max_tokens, as with OpenAI and vLLM; on completions it has no effect.
	MaxTokens int
	// PromptOnly: nothing is generated (a completion's max_tokens of 0), which with echo shows the prompt and its
	// probabilities.
	PromptOnly bool
	// MinTokens is the fewest tokens to generate, 0 to 2^31−1.
	MinTokens int
	// N is the number of answers, 1 to 128.
	N int
	// BestOf is how many answers the N are chosen among, 1 to 128, 0 where absent (best_of).
	BestOf int
	// BeamSearch requests the best of several answers, which vLLM computes as separate requests, without a hand-off
	// (entrypoints/generate/beam_search).
	BeamSearch bool
	// Stop is the strings that end an answer, none of them empty.
	Stop []string
	// IgnoreEOS continues past the end-of-sequence token.
	IgnoreEOS bool
	// Logprobs requests the tokens' probabilities, and TopLogprobs those of so many alternatives, −1 for all.
	Logprobs    bool
	TopLogprobs int
	// LargestID is the largest token id that a field other than the prompt names, and LargestIn that field; empty for
	// none.
	LargestID uint32
	LargestIn string
	// Truncate cuts the prompt to so many tokens: its last ones, or its first if TruncateRight is set. 0 keeps it
	// whole, below 0 fills the context (truncate_prompt_tokens, truncation_side).
	Truncate      int
	TruncateRight bool
	// CacheSalt separates this request's cached prefixes from others'. It is the body's cache_salt or, without one,
	// nvext's. Engines read only the former: nvext's must be set in their body.
	CacheSalt string
	// Isolated: CacheSalt is not the client's own; see Isolate.
	Isolated bool
	// Session names the conversation, empty where the client names none: nvext.session_id or prompt_cache_key.
	Session string
	// Inputs is how many sequences an endpoint that generates nothing has the engine compute, and InputTokens is about
	// how many tokens all of them have; 0 for others.
	Inputs, InputTokens int
	// HasTools: tools or functions are offered.
	HasTools bool
	// ToolRequired: the answer must call a tool (tool_choice "required").
	ToolRequired bool
	// HasToolMessages: a message calls a tool or is a tool's answer.
	HasToolMessages bool
	// Nvext is the request's extensions.
	Nvext Nvext
	// Memory counts the request's memory beyond its body; nil counts nothing. Scan leaves it nil.
	Memory Memory

	// Ignored are the paths of the body's hints that have no effect: a priority for engines, and some of nvext.
	Ignored []string

	members []member
	unsent  []string // the members that engines do not get
	media   []media  // in the order of the body

	// mediaNames are the members that name the media, nil without a name; made by NameMedia.
	mediaNames [][]byte
}

// Memory counts memory, in bytes.
type Memory interface {
	// Take counts n more bytes, and reports whether they may be taken. A refusal counts nothing.
	Take(n int) bool
	// Give returns n bytes.
	Give(n int)
}

// Extra returns the request's bytes beyond Raw, for a body of many tiny items; 0 if less than Raw.
func (r *Request) Extra() int {
	all := len(r.Prompt.spans)*int(unsafe.Sizeof(messageSpan{})) + 4*len(r.Prompt.IDs) + len(r.media)*int(unsafe.Sizeof(media{}))
	return max(0, all-len(r.Raw))
}

// member is the position of an object's member: its name with escapes resolved, its key's opening quote, its value.
type member struct {
	name  []byte
	start int
	value span
}

// Field returns the raw JSON value of the body's top-level member name, as a part of Raw.
func (r *Request) Field(name string) (value []byte, ok bool) {
	for i := range r.members {
		if m := &r.members[i]; string(m.name) == name {
			return r.Raw[m.value.start:m.value.end], true
		}
	}
	return nil, false
}

// Fields are the body's top-level members, in its order: names and raw JSON values, as parts of Raw.
func (r *Request) Fields() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for i := range r.members {
			if m := &r.members[i]; !yield(m.name, m.value.of(r.Raw)) {
				return
			}
		}
	}
}

// Has reports whether the body has a field of that name.
func (r *Request) Has(name string) bool {
	_, ok := r.Field(name)
	return ok
}

// ShowsMore reports whether a field makes engines add more than text to an answer: the prompt, log probabilities, ids,
// the experts of each token. One token then takes as much as the client requests.
func (r *Request) ShowsMore() bool {
	for i := range r.members {
		name := r.members[i].name
		if string(name) == "echo" || bytes.Contains(name, []byte("logprob")) || bytes.HasPrefix(name, []byte("return_")) {
			return true
		}
	}
	return false
}

// Isolate separates the request's cached prefixes from other tenants': CacheSalt becomes a digest of the tenant and of
// the client's salt. Equal salts of one tenant stay equal.
func (r *Request) Isolate(tenant [32]byte) {
	h := sha256.Sum256(append(tenant[:], r.CacheSalt...))
	r.CacheSalt, r.Isolated = hex.EncodeToString(h[:16]), true
}

func has[S string | []byte](ms []member, name S) bool {
	for i := range ms {
		if string(ms[i].name) == string(name) {
			return true
		}
	}
	return false
}
