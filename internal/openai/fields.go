package openai

import (
	"bytes"
	"math"
	"strings"
)

// field is a known member of an object: its path from the body's top, for errors, and its reader for values that are
// not null.
type field struct {
	param string
	read  reader
}

// reader reads one value; false ends the scan (see scan).
type reader func(*scan) bool

// fieldSet is the known members of one kind of object.
type fieldSet struct {
	fields []field // at most 64, a bit each while an object is read
	index  map[string]int
	strict bool // other members are refused
}

// newFieldSet indexes fields by the last part of their paths.
func newFieldSet(strict bool, lists ...[]field) *fieldSet {
	set := &fieldSet{index: make(map[string]int), strict: strict}
	for _, fs := range lists {
		for _, f := range fs {
			set.index[f.param[strings.LastIndexByte(f.param, '.')+1:]] = len(set.fields)
			set.fields = append(set.fields, f)
		}
	}
	if len(set.index) != len(set.fields) || len(set.fields) > 64 {
		panic("openai: a field set with doubled names or more than 64 of them")
	}
	return set
}

// names lists the set's members for an error message, in the table's order.
func (set *fieldSet) names() string {
	var b strings.Builder
	for i, f := range set.fields {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.param[strings.LastIndexByte(f.param, '.')+1:])
	}
	return b.String()
}

// Ranges follow OpenAI's API reference; where vLLM takes more (top_k −1, logprobs −1), vLLM's.
var (
	fieldsOf = [...]*fieldSet{
		Chat:          newFieldSet(false, commonFields, chatOnly),
		Completions:   newFieldSet(false, commonFields, completionOnly),
		Embeddings:    newFieldSet(false, inputFields, vectorOnly),
		Rerank:        newFieldSet(false, inputFields, rerankOnly),
		Score:         newFieldSet(false, inputFields, scoreOnly),
		Classify:      newFieldSet(false, inputFields, vectorOnly),
		Pooling:       newFieldSet(false, inputFields, vectorOnly),
		Tokenize:      newFieldSet(false, inputFields, tokenizeOnly),
		Detokenize:    newFieldSet(false, inputFields, detokenizeOnly),
		TokenizerInfo: newFieldSet(false),
	}

	commonFields = []field{
		{"model", func(s *scan) bool { return s.string(&s.req.Model) }},
		{"stream", func(s *scan) bool { return s.bool(&s.req.Stream) }},
		{"stream_options", (*scan).options},
		{"max_completion_tokens", count(1, func(s *scan, v int) { s.maxCompletionTokens = v })},
		{"min_tokens", count(0, func(s *scan, v int) { s.req.MinTokens = v })},
		{"n", integer(1, 128, func(s *scan, v int64) { s.req.N = int(v) })},
		{"best_of", integer(1, 128, func(s *scan, v int64) { s.req.BestOf = int(v) })},
		{"structured_outputs", (*scan).grammar},
		{"structural_tag", (*scan).grammar},
		{"guided_json", (*scan).grammar},
		{"json_schema", (*scan).grammar},
		{"use_beam_search", func(s *scan) bool { return s.bool(&s.req.BeamSearch) }},
		{"stop", (*scan).stop},
		{"stop_regex", (*scan).stopRegex},
		{"stream_interval", count(1, nil)},
		{"stop_token_ids", (*scan).tokenIDs},
		{"allowed_token_ids", (*scan).tokenIDs},
		{"logprob_token_ids", (*scan).tokenIDs},
		{"token_ids_logprob", (*scan).tokenIDs},
		{"bad_token_ids", (*scan).tokenIDs},
		{"bad_words_token_ids", (*scan).tokenIDLists},
		{"bad_words_ids", (*scan).tokenIDLists},
		{"ignore_eos", func(s *scan) bool { return s.bool(&s.req.IgnoreEOS) }},
		{"temperature", number(0, 2)},
		{"top_p", number(0, 1)},
		{"min_p", number(0, 1)},
		{"top_k", integer(-1, math.MaxInt32, nil)},
		{"presence_penalty", number(-2, 2)},
		{"frequency_penalty", number(-2, 2)},
		{"repetition_penalty", number(leastPenalty, 1/leastPenalty)},
		{"seed", integer(math.MinInt64, math.MaxInt64, nil)},
		{"logit_bias", (*scan).logitBias},
		{"user", anyString},
		{"cache_salt", func(s *scan) bool { return s.filled(&s.salt) }},
		{"prompt_cache_key", func(s *scan) bool { return s.string(&s.cacheKey) }},
		{"truncate_prompt_tokens", integer(-1, math.MaxInt32, func(s *scan, v int64) { s.req.Truncate = int(v) })},
		{"truncation_side", (*scan).truncationSide},
		{"vllm_xargs", (*scan).xargs},
		{"sampling_params", (*scan).samplingParams},
		{"nvext", (*scan).nvext},
	}
	chatOnly = []field{
		{"max_tokens", count(1, func(s *scan, v int) { s.maxTokens = v })},
		{"messages", (*scan).messages},
		{"tools", (*scan).tools},
		{"functions", (*scan).tools},
		{"logprobs", func(s *scan) bool { return s.bool(&s.req.Logprobs) }},
		{"top_logprobs", integer(-1, math.MaxInt32, func(s *scan, v int64) { s.req.TopLogprobs = int(v) })},
		{"tool_choice", (*scan).toolChoice},
		{"parallel_tool_calls", anyBool},
		{"response_format", (*scan).formatted},
	}
	completionOnly = []field{
		{"max_tokens", count(0, func(s *scan, v int) { s.maxTokens, s.req.PromptOnly = v, v == 0 })},
		{"prompt", (*scan).prompt},
		{"logprobs", integer(-1, math.MaxInt32, func(s *scan, v int64) { s.req.Logprobs, s.req.TopLogprobs = true, int(v) })},
		{"echo", anyBool},
		{"suffix", anyString},
		{"response_format", (*scan).formatted},
	}
	streamOptionFields = newFieldSet(false, []field{
		{"stream_options.include_usage", func(s *scan) bool { return s.bool(&s.req.IncludeUsage) }},
		{"stream_options.continuous_usage_stats", func(s *scan) bool { return s.bool(&s.req.ContinuousUsage) }},
		{"stream_options.include_obfuscation", anyBool},
	})
)

// gatewayField reports whether name is one that engines shall get from the gateway only (vLLM, SGLang, TensorRT-LLM):
// it steers a hand-off or a rank, names the request, jumps the engine's queue, puts other tokens in the prompt's
// place or another key on its cache, or names files of the worker's.
func gatewayField(name []byte) bool {
	switch string(name) {
	case "kv_transfer_params", "ec_transfer_params", "disaggregated_params",
		"data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank",
		"rid", "request_id", "priority",
		"input_ids", "prompt_token_ids", "prompt_token_ids_b64", "prompt_embeds", "input_embeds", "extra_key", "session_params",
		"lora_path", "lora_request", "return_hidden_states":
		return true
	}
	return bytes.HasPrefix(name, []byte("bootstrap_"))
}

// integer reads an integer from lo to hi and passes it to set, if any.
func integer(lo, hi int64, set func(*scan, int64)) reader {
	return func(s *scan) bool {
		v, ok := s.int(lo, hi)
		if ok && set != nil {
			set(s, v)
		}
		return ok
	}
}

// count reads a number of tokens, lo or more.
func count(lo int64, set func(*scan, int)) reader {
	return integer(lo, math.MaxInt32, func(s *scan, v int64) {
		if set != nil {
			set(s, int(v))
		}
	})
}

func number(lo, hi float64) reader {
	return func(s *scan) bool {
		_, ok := s.float(lo, hi)
		return ok
	}
}

func anyBool(s *scan) bool {
	var v bool
	return s.bool(&v)
}

func anyString(s *scan) bool {
	if s.peek() != '"' {
		return s.wrong("a string")
	}
	_, ok := s.str()
	return ok
}

// filled reads a string that is not empty.
func (s *scan) filled(dst *string) bool {
	if !s.string(dst) {
		return false
	}
	if *dst == "" {
		return s.wrong("a string that is not empty")
	}
	return true
}

// options reads stream_options; an empty object is as good as none.
func (s *scan) options() bool {
	from := s.pos
	ok := s.object(streamOptionFields)
	s.streamOptions = ok && len(bytes.TrimSpace(s.data[from+1:s.pos-1])) > 0
	return ok
}

// stop reads one stop string or several. vLLM takes any number of them.
func (s *scan) stop() bool {
	const want = "a string or an array of strings, none of them empty"
	stop := &s.req.Stop
	switch s.peek() {
	case '"':
		*stop = make([]string, 1)
		if !s.string(&(*stop)[0]) {
			return false
		}
	case '[':
		if !s.strings(stop) {
			return false
		}
	default:
		return s.wrong(want)
	}
	for _, v := range *stop {
		if v == "" {
			return s.wrong(want)
		}
	}
	return true
}

// tools notes whether any tool or function is offered.
func (s *scan) tools() bool {
	if !s.enter('[', "an array") {
		return false
	}
	for first := true; s.element(first); first = false {
		s.req.HasTools = true
		if !s.grammar() {
			return false
		}
	}
	return s.ok()
}

// toolChoice notes whether the answer must call a tool. The choice is a string, or an object that names one.
func (s *scan) toolChoice() bool {
	v, ok := s.value()
	s.req.ToolRequired = ok && string(s.data[v.start:v.end]) == `"required"`
	return ok
}

// truncationSide reads which end of a prompt too long is cut off.
func (s *scan) truncationSide() bool {
	var side string
	if !s.string(&side) {
		return false
	}
	if side != "left" && side != "right" {
		return s.wrong("\"left\" or \"right\"")
	}
	s.req.TruncateRight = side == "right"
	return true
}

// xargs reads the gateway's fields among vLLM's extra arguments, which reach the engine as if they were at the top
// level.
func (s *scan) xargs() bool {
	if s.peek() != '{' {
		return s.wrong("an object")
	}
	m := s.members()
	for m.next() {
		if !s.allowed(m.key.of(s.data)) {
			return false
		}
		s.value()
	}
	return s.ok()
}

// samplingParams rejects extra_args in sampling_params of vLLM's token endpoint, which control hand-offs
// (vllm/v1/request.py). The endpoints here ignore the object.
func (s *scan) samplingParams() bool {
	m := s.members()
	for m.next() {
		if name := m.key.of(s.data); string(name) == "extra_args" && !s.handOff {
			return s.gatewayOnly(name)
		} else if !s.allowed(name) {
			return false
		}
		s.value()
	}
	return s.ok()
}
