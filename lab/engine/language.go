package engine

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// Language is a model's tokenizer and chat template: what makes a prompt of a request's text or messages.
type Language interface {
	Tokenizer() *tokens.Cache
	// Encode appends to dst the tokens that the engine, "vllm" for example, makes of the request.
	Encode(dst []uint32, req *openai.Request, engine string) ([]uint32, error)
}

// ends are the tokens by which models end an answer, the most particular first.
var ends = []string{"<|im_end|>", "<|eot_id|>", "<|return|>", "<|endoftext|>", "</s>", "<eos>"}

// vocabularyOf returns a language's vocabulary for answers.
func vocabularyOf(t *tokens.Tokenizer) (Vocabulary, error) {
	v := Vocabulary{Words: t.Words()}
	for _, end := range ends {
		if id, ok := t.ID(end); ok {
			v.EOS = id
			return v, nil
		}
	}
	return v, errors.New("engine: the tokenizer has no token that ends an answer")
}

// templateFields are the members of a chat that its template may see.
var templateFields = []string{
	"model", "messages", "tools", "tool_choice", "documents", "chat_template_kwargs", "add_generation_prompt",
	"continue_final_message", "add_special_tokens", "reasoning_effort", "response_format",
}

// rendered is a chat's prompt under the model's own template.
func (s *Server) rendered(f *fields) []uint32 {
	seen := map[string]json.RawMessage{}
	for _, name := range templateFields {
		if raw := f.get(name); raw != nil {
			seen[name] = raw
		}
	}
	if defaults := s.cfg.ChatTemplateKwargs; defaults != "" {
		seen["chat_template_kwargs"] = withDefaults(seen["chat_template_kwargs"], defaults)
	}
	body, _ := json.Marshal(seen) // of raw JSON: cannot fail
	req, err := openai.Limits{}.Scan(openai.Chat, body)
	var ids []uint32
	if err == nil {
		ids, err = s.cfg.Language.Encode(nil, req, s.cfg.Engine)
	}
	if err != nil && f.err == nil {
		f.err = newError(http.StatusBadRequest, "messages", "%v", err)
	}
	return ids
}

// withDefaults adds to a chat's kwargs those of the server's that it has not (vllm-0.32.0/vllm/renderers/params.py,
// merge_kwargs; sglang-0.5.23/sglang/srt/entrypoints/openai/serving_chat.py, _process_messages). vLLM takes a null for
// none.
func withDefaults(own json.RawMessage, defaults string) json.RawMessage {
	var all, given map[string]json.RawMessage
	if json.Unmarshal([]byte(defaults), &all) != nil || own != nil && json.Unmarshal(own, &given) != nil {
		return own
	}
	for name, v := range given {
		if string(v) != "null" {
			all[name] = v
		}
	}
	merged, _ := json.Marshal(all) // of raw JSON: cannot fail
	return merged
}

// encodeText is a completion's prompt as the model's tokenizer makes it.
func (s *Server) encodeText(text string) []uint32 {
	if s.cfg.Language != nil {
		return s.tokenizer.EncodePrompt(nil, text)
	}
	return s.tokenizer.Encode([]uint32{}, text)
}
