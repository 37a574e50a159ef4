package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"unsafe"
)

// Request is what a request body says, as far as routing needs it. Scan makes it; the rest of the body stays in Raw
// and is reached by Field and Edit.
type Request struct {
	Endpoint Endpoint
	// Raw is the body as it came. It must not change.
	Raw []byte
	// Model is the model's name, empty where the client leaves it to the gateway.
	Model string
	// Adapter is the LoRA adapter of Model that the answer is to be made with, empty for none. Scan leaves it empty:
	// which names are adapters' is not known from the body.
	Adapter string
	// Prompt is the text, the token ids or the messages to go on from.
	Prompt Prompt
	// Stream asks for server-sent events.
	Stream bool
	// IncludeUsage asks for a last chunk with the usage (stream_options).
	IncludeUsage bool
	// ContinuousUsage asks for the usage so far in each chunk (stream_options).
	ContinuousUsage bool
	// MaxTokens is the most tokens to generate, 1 to 2^31−1, 0 where the client set no limit. On chat it is
	// max_completion_tokens where that is given, whatever the older max_tokens says, as OpenAI and vLLM have it; on
	// completions max_completion_tokens means nothing.
	MaxTokens int
	// PromptOnly: nothing is generated (a completion's max_tokens of 0), which with echo shows the prompt and its
	// probabilities.
	PromptOnly bool
	// MinTokens is the fewest tokens to generate, 0 to 2^31−1.
	MinTokens int
	// N is how many answers are asked for, 1 to 128.
	N int
	// BeamSearch asks for the best of several answers, which vLLM computes as requests of their own, without a hand-off
	// (entrypoints/generate/beam_search).
	BeamSearch bool
	// Stop is the strings that end an answer, none of them empty.
	Stop []string
	// IgnoreEOS asks to generate past the end-of-sequence token.
	IgnoreEOS bool
	// Logprobs asks for the tokens' probabilities, and TopLogprobs for those of as many others in each one's place, −1 for all.
	Logprobs    bool
	TopLogprobs int
	// LargestID is the largest token id that a field other than the prompt names, and LargestIn that field; empty for none.
	LargestID uint32
	LargestIn string
	// Truncate cuts the prompt to so many tokens: its last ones, or its first where TruncateRight is set. 0 leaves it
	// whole, below 0 stands for as many as the context has room for (truncate_prompt_tokens, truncation_side).
	Truncate      int
	TruncateRight bool
	// CacheSalt separates this request's cached prefixes from others'. It is the body's cache_salt or, where that is
	// absent, nvext's. Engines read only the former: one that came in nvext must be set in their body.
	CacheSalt string
	// Isolated: CacheSalt is not the client's own; see Isolate.
	Isolated bool
	// Session names the conversation, empty where the client names none: nvext.session_id or prompt_cache_key.
	Session string
	// HasTools: tools or functions are offered.
	HasTools bool
	// ToolRequired: the answer must call a tool (tool_choice "required").
	ToolRequired bool
	// HasToolMessages: a message calls a tool or is a tool's answer.
	HasToolMessages bool
	// Nvext is the extensions the request came with.
	Nvext Nvext
	// Memory counts what is made of the request beyond its body; nil counts nothing. Scan leaves it nil.
	Memory Memory

	// OwnPriority: the body has a priority of the client's own, which counts nowhere.
	OwnPriority bool

	members []member
	unsent  []string // the members that engines do not get
	media   []media  // in the order of the body

	// mediaNames are the members that name the media, nil of those that have no name; made by NameMedia.
	mediaNames [][]byte
}

// Memory counts memory, in bytes.
type Memory interface {
	// Take counts n more bytes, and reports whether they may be taken. A refusal counts nothing.
	Take(n int) bool
	// Give counts n bytes no more.
	Give(n int)
}

// Extra is how many bytes the request takes beyond Raw, of a body of many tiny items; 0 for what is less than Raw itself.
func (r *Request) Extra() int {
	all := len(r.Prompt.spans)*int(unsafe.Sizeof(messageSpan{})) + 4*len(r.Prompt.IDs) + len(r.media)*int(unsafe.Sizeof(media{}))
	return max(0, all-len(r.Raw))
}

// member is where one member of an object lies: its name with escapes resolved, the quote its key begins with, its
// value.
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

// ShowsMore reports whether the request has a field by which engines add more to an answer than its text: the prompt, log
// probabilities, ids, the experts of each token. One token then takes as much as the client asks for.
func (r *Request) ShowsMore() bool {
	for i := range r.members {
		name := r.members[i].name
		if string(name) == "echo" || bytes.Contains(name, []byte("logprob")) || bytes.HasPrefix(name, []byte("return_")) {
			return true
		}
	}
	return false
}

// Isolate keeps the request's cached prefixes apart from those of other tenants: CacheSalt becomes a digest of the
// tenant and of the salt that the client sent. Equal ones of one tenant stay equal.
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
