package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// prompts reads the member "prompt": a string, token ids, or a list of either with a prompt in each item.
func (s *Server) prompts(f *fields) [][]uint32 {
	raw := f.get("prompt")
	if raw == nil {
		f.fail("prompt", "prompt is required")
		return nil
	}
	ids := func(raw json.RawMessage) []uint32 { return s.ids(f, "prompt", raw) }
	text := func(raw json.RawMessage) []uint32 {
		var t string
		if json.Unmarshal(raw, &t) != nil {
			f.fail("prompt", "prompt must be text or token ids")
		}
		if least := s.tokenizer.Tokenizer().MinTokens(len(t)); least >= s.cfg.ContextLength && f.get("truncate_prompt_tokens") == nil {
			f.fail("prompt", "this model's maximum context length is %d tokens; the prompt has at least %d", s.cfg.ContextLength, least)
			return nil
		}
		return s.encodeText(t)
	}
	if raw[0] == '"' {
		return [][]uint32{text(raw)}
	}
	switch first := firstOf(raw); {
	case first == '-' || first >= '0' && first <= '9' || first == 't' || first == 'f':
		return [][]uint32{ids(raw)}
	case first == '"' || first == '[':
		var each []json.RawMessage
		if json.Unmarshal(raw, &each) != nil {
			break
		}
		if slices.ContainsFunc(each, func(one json.RawMessage) bool { return one[0] != '"' && one[0] != '[' }) {
			return [][]uint32{ids(raw)} // the union's list[int] is the one that takes ["1", 2]
		}
		all := make([][]uint32, 0, len(each))
		for _, one := range each {
			switch one[0] {
			case '"':
				all = append(all, text(one))
			case '[':
				all = append(all, ids(one))
			}
		}
		return all
	}
	f.wrong("prompt", "prompt must be text, token ids, or a list of either, and not empty")
	return nil
}

// firstOf is the first character inside a JSON array, 0 if raw is none.
func firstOf(raw json.RawMessage) byte {
	if raw[0] != '[' {
		return 0
	}
	return bytes.TrimLeft(raw[1:], " \t\r\n")[0] // at least the closing bracket
}

// ids reads the token ids of a field. SGLang does not compare those of a prompt with its vocabulary: the embedding
// does, which ends the scheduler (0.5.23: _validate_one_request of srt/managers/tokenizer_manager.py checks lengths
// alone).
func (s *Server) ids(f *fields, name string, raw json.RawMessage) []uint32 {
	ids, err := parseIDs(raw, s.tokenizer.Tokenizer().VocabSize())
	switch {
	case err == nil:
	case s.cfg.Engine == "sglang" && wholeNumbers(raw):
		if s.cfg.Role != "decode" { // which takes the KV, or waits for it
			f.kills = "IndexError: index out of range in self"
		}
		ids = append(ids, 0) // not empty
	default:
		f.fail(name, "%s: %v", name, err)
	}
	return ids
}

// wholeNumbers reports whether raw is a list of 64-bit integers.
func wholeNumbers(raw json.RawMessage) bool {
	var all []int64
	return json.Unmarshal(raw, &all) == nil
}

// parseIDs reads a JSON array of token ids below vocab. It is a hundred times
// the size of any other field, so it is read by hand.
func parseIDs(raw json.RawMessage, vocab int) ([]uint32, error) {
	ids := make([]uint32, 0, len(raw)/5)
	for s := strings.TrimSpace(string(raw[1 : len(raw)-1])); s != ""; {
		one, rest, _ := strings.Cut(s, ",")
		one = strings.TrimSpace(one)
		id, err := strconv.ParseUint(one, 10, 32)
		if err != nil {
			x, ok := looseNumber(json.RawMessage(one))
			if !ok || x < 0 || x > math.MaxUint32 || x != math.Trunc(x) {
				return nil, fmt.Errorf("element %d is not a token id", len(ids))
			}
			id = uint64(x)
		}
		if id >= uint64(min(vocab, math.MaxInt32)) {
			return nil, fmt.Errorf("token id %d is out of vocabulary", id)
		}
		ids = append(ids, uint32(id))
		s = rest
	}
	return ids, nil
}

// chatPrompt reads the member "messages" and renders it with the model's template. Text parts are joined by line feeds;
// parts of other kinds are left out, as the simulated model has no eyes.
func (s *Server) chatPrompt(f *fields) []uint32 {
	var messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if f.get("messages") == nil {
		f.wrong("messages", "messages is required")
		return nil
	}
	f.decode("messages", &messages, "a list of messages")
	if f.err == nil && len(messages) == 0 {
		f.fail("messages", "messages is empty")
	}
	for i, m := range messages {
		if m.Role == "" {
			f.wrong(fmt.Sprintf("messages.%d.role", i), "Field required")
		}
	}
	if s.cfg.Language != nil && f.err == nil {
		return s.rendered(f)
	}
	chat := make([]tokens.Message, 0, len(messages))
	for i, m := range messages {
		content, ok := messageText(m.Content)
		if !ok {
			f.wrong(fmt.Sprintf("messages.%d.ChatCompletionDeveloperMessageParam.content", i),
				"messages[%d].content must be text or a list of parts", i)
		}
		chat = append(chat, tokens.Message{Role: m.Role, Content: content})
	}
	if f.err != nil {
		return nil
	}
	return s.tokenizer.EncodeChat(nil, chat)
}

// messageText is a message's content: null, text, or parts, which may be strings; those without a text are left out
// (vllm-0.32.0/vllm/renderers/chat_utils.py, _parse_chat_message_content_parts).
func messageText(raw json.RawMessage) (string, bool) {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil {
		return text, true
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return "", false
	}
	var texts []string
	for _, raw := range parts {
		p := struct{ Type, Text string }{Type: "text"}
		if json.Unmarshal(raw, &p.Text) != nil && json.Unmarshal(raw, &p) != nil {
			return "", false
		}
		if p.Type == "text" && p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n"), true
}

// truncate cuts a prompt to truncate_prompt_tokens, which below 0 is what the
// context has room for: its last tokens, or its first.
func (s *Server) truncate(f *fields, prompt []uint32, maxTokens int) []uint32 {
	n := f.integer("truncate_prompt_tokens", 0, -1, math.MaxInt32)
	if n < 0 {
		n = max(1, s.cfg.ContextLength-max(1, maxTokens))
	}
	switch {
	case n == 0, len(prompt) <= n:
		return prompt
	case f.text("truncation_side") == "right":
		return prompt[:n]
	}
	return prompt[len(prompt)-n:]
}

// checkLength refuses a prompt that leaves no room for a token. The core would
// too; the error is vLLM's, before anything was booked.
func (s *Server) checkLength(prompt []uint32, maxTokens int) *apiError {
	n, limit := len(prompt), s.cfg.ContextLength
	switch {
	case n == 0:
		return newError(http.StatusBadRequest, "prompt", "the prompt is empty")
	case n >= limit:
		return newError(http.StatusBadRequest, "prompt", "this model's maximum context length is %d tokens; the prompt has %d", limit, n)
	case maxTokens > limit-n:
		return newError(http.StatusBadRequest, "max_tokens",
			"this model's maximum context length is %d tokens; the request asks for %d: %d in the prompt and %d of the answer", limit,
			n+maxTokens, n, maxTokens)
	}
	return nil
}
