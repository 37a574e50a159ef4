package openai

import (
	"slices"
	"strconv"
	"strings"
)

// Bounds of factors and biases of logits. Engines compute these in 32 bits: beyond, at a low temperature, they are
// infinite and probabilities are NaN. vLLM clips biases to ±100, which is OpenAI's range.
const (
	mostBias     = 1e6
	leastPenalty = 1e-6
)

// OutsideVocabulary returns the 400 for a token id of the request that is not below size, the model's vocabulary, and
// for more probabilities than that. It is nil without either.
func (r *Request) OutsideVocabulary(size int) *Error {
	if r.TopLogprobs > size {
		return BadRequest(r.topLogprobsField(), "%s is %d, and the model's vocabulary has %d tokens", r.topLogprobsField(), r.TopLogprobs, size)
	}
	id, param := r.LargestID, r.LargestIn
	if r.Prompt.Kind == PromptIDs {
		if highest := slices.Max(r.Prompt.IDs); int64(highest) >= int64(size) {
			id, param = highest, "prompt"
		}
	}
	if param == "" || int64(id) < int64(size) {
		return nil
	}
	return BadRequest(param, "%s holds the token id %d, and the model's vocabulary ends at %d", param, id, size-1)
}

// Unchecked names a field that SGLang 0.5.23 does not check though a value outside of the vocabulary ends its process,
// empty without one: token ids of the prompt, those of stop_token_ids with min_tokens, and more probabilities than
// OpenAI's limit.
func (r *Request) Unchecked() (param string) {
	const safeLogprobs = 20
	switch {
	case r.Prompt.Kind == PromptIDs:
		return "prompt"
	case !r.Endpoint.Generates():
		return r.LargestIn
	case r.TopLogprobs > safeLogprobs:
		return r.topLogprobsField()
	case r.MinTokens > 0 && r.LargestIn != "" && r.Has("stop_token_ids"):
		return "stop_token_ids"
	}
	return ""
}

func (r *Request) topLogprobsField() string {
	if r.Endpoint == Chat {
		return "top_logprobs"
	}
	return "logprobs"
}

// tokenIDs reads an array of token ids.
func (s *scan) tokenIDs() bool {
	var ids []uint32
	if !s.ids(&ids) {
		return false
	}
	for _, id := range ids {
		s.names(id)
	}
	return true
}

// tokenIDLists reads an array of token ids, or of such arrays.
func (s *scan) tokenIDLists() bool {
	outside := s.cursor
	if !s.enter('[', "an array of token ids") {
		return false
	}
	if s.peek() != '[' {
		s.cursor = outside
		return s.tokenIDs()
	}
	for first := true; s.element(first); first = false {
		if !s.tokenIDs() {
			return false
		}
	}
	return s.ok()
}

// names notes a token id of the field at hand.
func (s *scan) names(id uint32) {
	if r := s.req; r.LargestIn == "" || id > r.LargestID {
		r.LargestID, r.LargestIn = id, s.param
	}
}

// logitBias reads an object of token ids and their biases.
func (s *scan) logitBias() bool {
	const want = "an object whose keys are token ids (whole numbers from 0 to 4294967295)"
	if s.peek() != '{' {
		return s.wrong(want)
	}
	m := s.members()
	for m.next() {
		id, err := strconv.ParseUint(strings.TrimSpace(string(m.name())), 10, 32)
		if err != nil {
			return s.wrong(want)
		}
		s.names(uint32(id))
		if _, ok := s.float(-mostBias, mostBias); !ok {
			return false
		}
	}
	return s.ok()
}
