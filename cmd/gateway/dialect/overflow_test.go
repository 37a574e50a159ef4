package dialect

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Agents compact their history when they recognise a request that is longer than the context, by its text alone.
var (
	// litellm are the substrings of is_error_str_context_window_exceeded in LiteLLM 1.110.2
	// (litellm_core_utils/exception_mapping_utils.py), which compares in lower case.
	litellm = []string{
		"exceed context limit",
		"this model's maximum context length is",
		"requested token count exceeds the model's maximum context length",
		"string too long. expected a string with maximum length",
		"model's maximum context limit",
		"is longer than the model's context length",
		"input tokens exceed the configured limit",
		"`inputs` tokens + `max_new_tokens` must be",
		"exceeds the available context size",
		"exceeds the maximum number of tokens allowed",
		`"code": "context_length_exceeded"`,
		"prompt is too long",
	}
	// pi is OVERFLOW_PATTERNS of @mariozechner/pi-ai 0.73.1 (dist/utils/overflow.js), and one that matches counts
	// unless notPi does.
	pi = []string{
		`prompt is too long`, `request_too_large`, `input is too long for requested model`, `exceeds the context window`,
		`input token count.*exceeds the maximum`, `maximum prompt length is \d+`, `reduce the length of the messages`,
		`maximum context length is \d+ tokens`, `exceeds the limit of \d+`, `exceeds the available context size`,
		`greater than the context length`, `context window exceeds limit`, `exceeded model token limit`,
		`too large for model with \d+ maximum context length`, `model_context_window_exceeded`,
		`prompt too long; exceeded (?:max )?context length`, `context[_ ]length[_ ]exceeded`, `too many tokens`, `token limit exceeded`,
	}
	notPi = []string{`^(Throttling error|Service unavailable):`, `rate limit`, `too many requests`}
	// claudeCode are the two forms from which Claude Code takes the numbers (../shared/reference/clients.md §3.4).
	claudeCode = []string{
		"input length and `max_tokens` exceed context limit: (\\d+) \\+ (\\d+) > (\\d+)",
		`prompt is too long: (\d+) tokens > (\d+) maximum`,
	}
)

func anyMatches(patterns []string, text string) bool {
	for _, p := range patterns {
		if regexp.MustCompile("(?i)" + p).MatchString(text) {
			return true
		}
	}
	return false
}

func TestAgentsRecogniseAnOverflow(t *testing.T) {
	r, err := openai.Limits{}.Scan(openai.Chat, []byte(`{"messages":[{"role":"user","content":"x"}],"max_tokens":500}`))
	require.NoError(t, err)
	engine := func(message string) *openai.Error {
		e := &openai.Error{Status: 400, Message: message}
		e.NameOverflow()
		return e
	}
	const sum, alone = "input length and `max_tokens` exceed context limit: 900 + 500 > 1000", "prompt is too long: 1200 tokens > 1000 maximum"
	for _, c := range []struct {
		e        *openai.Error
		messages string // how the Messages error begins
	}{
		{r.TooLong(900, 1000, false), sum},
		{r.TooLong(1200, 1000, true), alone},
		// vLLM: renderers/params.py of 0.33.0, and two older forms
		{engine("This model's maximum context length is 1000 tokens. However, your prompt contains 1200 input tokens, which exceeds this limit " +
			"even without any output tokens. Please reduce the length of the input prompt."), alone},
		{engine("This model's maximum context length is 1000 tokens. However, you requested 500 output tokens and your prompt contains " +
			"at least 900 input tokens, for a total of at least 1400 tokens. Please reduce the length of the input prompt."), sum},
		{engine("'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 1000 tokens and your " +
			"request has 900 input tokens (500 > 1000 - 900)."), sum},
		// SGLang: srt/managers/tokenizer_manager.py of 0.5.23
		{engine("The input (1200 tokens) is longer than the model's context length (1000 tokens)."), alone},
		{engine("Requested token count exceeds the model's maximum context length of 1000 tokens. You requested a total of 1400 tokens: 900 " +
			"tokens from the input messages and 500 tokens for the completion. Please reduce the number of tokens in the input messages " +
			"or the completion to fit within the limit."), sum},
		// no numbers
		{engine("the maximum context length is less than this"), "prompt is too long: "},
	} {
		for dialect, body := range map[string][]byte{
			"chat":     c.e.Append(nil, "r1"), // and Responses, whole
			"Messages": AppendMessagesError(nil, c.e, "r1"),
			"stream":   begin(t, "").Fail(nil, c.e),
		} {
			var shown struct{ Error struct{ Message string } }
			if _, data, ok := strings.Cut(string(body), "data: "); ok {
				body = []byte(data)
			}
			require.NoError(t, json.Unmarshal(body, &shown))
			text := shown.Error.Message
			recognised := false
			for _, part := range litellm {
				recognised = recognised || strings.Contains(strings.ToLower(text), part)
			}
			if dialect != "chat" || strings.Contains(text, "tokens") {
				assert.True(t, recognised, "LiteLLM, %s: %s", dialect, text)
			}
			assert.True(t, anyMatches(pi, text) && !anyMatches(notPi, text), "pi, %s: %s", dialect, text)
			if dialect != "chat" {
				assert.True(t, strings.HasPrefix(text, c.messages), "%s: %s", dialect, text)
				assert.Equal(t, strings.Contains(c.messages, " > "), anyMatches(claudeCode, text), text)
			}
		}
	}
}
