package models

import (
	"bytes"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/openai"
)

// kind is what decides, but for the texts of its messages, how an engine makes a request's prompt: which fields it has,
// the values of those that templates read, and how its messages follow each other. Equal kinds are compared with engines
// as one. It is drawn for each language, so that no client can make one that is another's.
func (l *Language) kind(req *openai.Request, engine string) uint64 {
	var room [128]byte
	seed := l.prompts.seed
	sum := xxh3.HashSeed(req.Prompt.AppendForm(append(room[:0], engine...)), seed)
	for name, value := range req.Fields() {
		switch part := fieldParts[string(name)]; {
		case part == noPart, string(value) == "null", value[0] == '[' && len(bytes.Trim(value, "[] \n\r\t")) == 0:
		case part == itsValue:
			sum += xxh3.HashSeed(value, xxh3.HashSeed(name, seed)) // a sum, as the fields' order means nothing
		default:
			sum += xxh3.HashSeed(name, seed)
		}
	}
	return sum
}

// fieldPart is which part of a field is of its request's kind.
type fieldPart uint8

const (
	itsName fieldPart = iota // of fields that are not listed too: an engine may know them
	itsValue
	noPart
)

// fieldParts are the parts of the fields that are not taken by their names alone.
var fieldParts = func() map[string]fieldPart {
	parts := map[string]fieldPart{}
	for _, name := range []string{
		"tools", "functions", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "add_generation_prompt",
		"continue_final_message", "add_special_tokens", "reasoning_effort", "thinking", "task", "truncation_side",
	} {
		parts[name] = itsValue
	}
	for _, name := range []string{
		"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p",
		"top_k", "min_p", "n", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "seed", "user", "logprobs", "top_logprobs",
		"presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "metadata", "store", "service_tier", "priority",
		"cache_salt", "prompt_cache_key", "safety_identifier", "return_token_ids", "return_prompt_token_ids", "nvext",
	} {
		parts[name] = noPart
	}
	return parts
}()
