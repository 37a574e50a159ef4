package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// maxInputs bounds the inputs of one request: each is a sequence of its own in the engine, and one client's must not
// fill it for long.
const maxInputs = 1 << 14

// Estimated tokens of inputs.
const (
	bytesPerToken = 4
	tokensOfMedia = 1024
)

// The fields of the endpoints that generate nothing, as vLLM 0.32 (entrypoints/pooling, serve/tokenize) and SGLang
// 0.5.23 (entrypoints/openai/protocol.py) have them.
var (
	inputFields = []field{
		{"model", func(s *scan) bool { return s.string(&s.req.Model) }},
		{"user", anyString},
		{"cache_salt", func(s *scan) bool { return s.filled(&s.salt) }},
		{"nvext", (*scan).nvext},
	}
	vectorOnly = []field{
		{"input", (*scan).inputs},
		{"messages", (*scan).conversations},
		{"encoding_format", (*scan).encoding},
		{"dimensions", count(1, nil)},
		{"truncate_prompt_tokens", integer(-1, math.MaxInt32, nil)},
	}
	rerankOnly = []field{
		{"query", (*scan).inputs},
		{"documents", (*scan).inputs},
		{"top_n", count(0, nil)},
		{"return_documents", anyBool},
	}
	scoreOnly = []field{
		{"text_1", (*scan).inputs},
		{"text_2", (*scan).inputs},
		{"data_1", (*scan).inputs},
		{"data_2", (*scan).inputs},
		{"queries", (*scan).inputs},
		{"query", (*scan).inputs},
		{"documents", (*scan).inputs},
		{"items", (*scan).inputs},
		{"label_token_ids", (*scan).tokenIDLists},
	}
	tokenizeOnly = []field{
		{"prompt", (*scan).texts},
		{"messages", (*scan).messages},
		{"tools", (*scan).tools},
		{"add_special_tokens", anyBool},
		{"add_generation_prompt", anyBool},
		{"continue_final_message", anyBool},
		{"return_token_strs", anyBool},
	}
	detokenizeOnly = []field{{"tokens", (*scan).inputs}}

	// needed are the fields that a request must have, in one of these ways.
	needed = map[Endpoint][]string{
		Embeddings: {"input", "messages"},
		Rerank:     {"query and documents"},
		Score:      {"text_1 and text_2", "data_1 and data_2", "queries and documents", "queries and items", "query and items"},
		Classify:   {"input", "messages"},
		Pooling:    {"input", "messages", "data"},
		Tokenize:   {"prompt", "messages"},
		Detokenize: {"tokens"},
	}
)

// checkInputs checks what concerns several fields of a request to an endpoint that generates nothing.
func (s *scan) checkInputs() {
	r := s.req
	ways, met := needed[r.Endpoint], false
	for _, way := range ways {
		all := true
		for _, name := range strings.Split(way, " and ") {
			v, ok := r.Field(name)
			all = all && ok && string(v) != "null"
		}
		met = met || all
	}
	if !met {
		first, _, _ := strings.Cut(ways[0], " ")
		s.refuse(BadRequest(first, "the request needs %s", strings.Join(ways, ", or ")))
		return
	}
	r.Session, r.CacheSalt = r.Nvext.SessionID, s.salt
	if !r.Endpoint.Computes() {
		r.Inputs, r.InputTokens = 0, 0
		return
	}
	r.Inputs = max(1, r.Inputs)
	r.InputTokens = max(1, r.InputTokens+(r.Inputs-1)*s.shared)
}

const inputForms = "a string, an array of token ids (whole numbers from 0 to 4294967295), or an array of these"

// inputs reads what an engine computes: a text, an object or a list of token ids, or a list of these.
func (s *scan) inputs() bool {
	n, tokens := 0, 0
	switch s.peek() {
	case '"', '{':
		n = 1
		s.input(&tokens)
	case '[':
		if n = 1; s.idsAhead() {
			s.input(&tokens)
			break
		}
		s.open()
		n = 0
		for first := true; s.element(first); first = false {
			if n++; n > maxInputs {
				return s.refuse(BadRequest(s.param, "%s has more than %d inputs; send them in several requests", s.param, maxInputs))
			}
			if !s.input(&tokens) {
				return false
			}
		}
		if n == 0 && s.ok() {
			return s.refuse(BadRequest(s.param, "%s must not be empty", s.param))
		}
	default:
		return s.wrong(inputForms)
	}
	s.counts(n, tokens)
	return s.ok()
}

// counts adds a field's inputs and their tokens. Each of several inputs is computed together with the only one of
// another field, such as a query.
func (s *scan) counts(n, tokens int) {
	s.req.Inputs = max(s.req.Inputs, n)
	s.req.InputTokens += tokens
	if n == 1 {
		s.shared += tokens
	}
}

// input reads one input, or a part of one.
func (s *scan) input(tokens *int) bool {
	switch s.peek() {
	case '"':
		t, ok := s.str()
		*tokens += 1 + t.decoded/bytesPerToken
		return ok
	case '[':
		if s.idsAhead() {
			var ids []uint32
			if !s.ids(&ids) {
				return false
			}
			s.names(slices.Max(ids))
			*tokens += len(ids)
			return true
		}
		s.open()
		for first := true; s.element(first); first = false {
			if !s.input(tokens) {
				return false
			}
		}
		return s.ok()
	case '{':
		return s.parts(tokens)
	}
	return s.wrong(inputForms)
}

// idsAhead reports whether the array at pos begins with a token id.
func (s *scan) idsAhead() bool {
	inside := s.cursor
	b := byte(0)
	if inside.open() {
		b = inside.peek()
	}
	return b == '-' || b-'0' <= 9
}

// parts reads an object of text and media: a message, a part of one, or SGLang's with a text and an image.
func (s *scan) parts(tokens *int) bool {
	begin, kind := s.pos, Text
	all := s.members()
	for all.next() {
		name := all.name()
		switch of := modalityOf(name); {
		case string(name) == "uuid" && !s.handOff:
			return s.gatewayOnly(name) // vLLM takes it for the content's hash, which could be that of another client's image
		case of == Image || of == Audio || of == Video:
			kind = of
			s.value()
		case string(name) == "content" && s.peek() == '[':
			s.input(tokens)
		default:
			v, _ := s.value()
			*tokens += (v.end - v.start) / bytesPerToken
		}
		if s.err != nil {
			return false
		}
	}
	if kind == Text || !s.ok() {
		return s.ok()
	}
	if len(s.req.media) == maxMedia {
		return s.wrong(fmt.Sprintf("without more than %d images, audios and videos", maxMedia))
	}
	s.req.media = append(s.req.media, media{kind, span{begin, s.pos}})
	*tokens += tokensOfMedia
	return true
}

// conversations reads the messages of one conversation, or of several.
func (s *scan) conversations() bool {
	if !s.enter('[', "an array of messages, or of conversations") {
		return false
	}
	n, tokens := 0, 0
	for first := true; s.element(first); first = false {
		if s.peek() == '[' || n == 0 {
			n++
		}
		if n > maxInputs {
			return s.refuse(BadRequest(s.param, "%s has more than %d conversations", s.param, maxInputs))
		}
		if !s.input(&tokens) {
			return false
		}
	}
	s.counts(n, tokens)
	return s.ok()
}

// encoding reads the form of vectors in the answer.
func (s *scan) encoding() bool {
	var form string
	if !s.string(&form) {
		return false
	}
	if form == "bytes" {
		return s.wrong(`"float", "base64" or "bytes_only": the engine describes "bytes" in a header, which the gateway does not relay`)
	}
	return true
}

// texts reads the prompt of a request to tokenize: one text, or what its engine may take.
func (s *scan) texts() bool {
	if s.peek() != '"' {
		_, ok := s.value()
		return ok
	}
	t, ok := s.str()
	s.req.Prompt = Prompt{Kind: PromptText, raw: s.data, where: t}
	return ok
}

// unwrapDocuments makes e, an edit of a rerank's body, send documents of the form {"text": "…"} as texts, the only form
// that all engines take.
func (r *Request) unwrapDocuments(e *Edit) {
	documents, ok := r.Field("documents")
	if !ok || r.Endpoint != Rerank {
		return
	}
	var out []byte
	copied, c := 0, newCursor(documents, deepest)
	if !c.in('[') {
		return
	}
	for first := true; c.element(first); first = false {
		start, text := c.pos, span{}
		all := c.members() // skips what is no object
		for all.next() {
			wanted := string(all.name()) == "text" && c.peek() == '"'
			if v, _ := c.value(); wanted {
				text = v
			}
		}
		if text.end > 0 {
			out = append(append(out, documents[copied:start]...), text.of(documents)...)
			copied = c.pos
		}
	}
	if copied > 0 {
		e.Set("documents", append(out, documents[copied:]...))
	}
}

// RerankAnswer returns an engine's answer to a rerank in the form of Jina and Cohere: SGLang's is a list. Any other
// stays as it is. id and model are the request's.
func RerankAnswer(answer []byte, id, model string) []byte {
	if !bytes.HasPrefix(bytes.TrimLeft(answer, " \t\r\n"), []byte("[")) {
		return answer
	}
	var list []struct {
		Score    json.RawMessage `json:"score"`
		Index    int             `json:"index"`
		Document json.RawMessage `json:"document"`
		Meta     struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"meta_info"`
	}
	if json.Unmarshal(answer, &list) != nil {
		return answer
	}
	type document struct {
		Text json.RawMessage `json:"text"`
	}
	type result struct {
		Index    int             `json:"index"`
		Document *document       `json:"document,omitempty"`
		Score    json.RawMessage `json:"relevance_score"`
	}
	type usage struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	}
	out := struct {
		ID      string   `json:"id"`
		Model   string   `json:"model"`
		Usage   usage    `json:"usage"`
		Results []result `json:"results"`
	}{ID: "rerank-" + id, Model: model, Results: make([]result, 0, len(list))}
	for _, one := range list {
		r := result{Index: one.Index, Score: one.Score}
		if len(one.Document) > 0 && one.Document[0] == '"' {
			r.Document = &document{one.Document}
		}
		out.Usage.Prompt += one.Meta.PromptTokens
		out.Usage.Total = out.Usage.Prompt
		out.Results = append(out.Results, r)
	}
	if whole, err := json.Marshal(out); err == nil {
		return whole
	}
	return answer
}
