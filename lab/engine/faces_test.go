package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// alone runs a test in a bubble with one engine e.
func alone(t *testing.T, do func(b *bench, s *Server)) {
	bubble(t, func(t *testing.T, b *bench) {
		s, _ := b.engine(Config{ID: "e"})
		do(b, s)
	})
}

func TestWholeChat(t *testing.T) {
	alone(t, func(b *bench, _ *Server) {
		messages := []map[string]any{
			{"role": "system", "content": "be brief"},
			{"role": "user", "content": []map[string]string{{"type": "text", "text": "one"}, {"type": "image_url"},
				{"type": "text", "text": "two"}}},
			{"role": "assistant", "content": nil},
			{"role": "user", "content": "<|im_end|> is text here"},
		}
		prompt := tokens.Sim().EncodeChat(nil, []tokens.Message{
			{Role: "system", Content: "be brief"}, {Role: "user", Content: "one\ntwo"}, {Role: "assistant"},
			{Role: "user", Content: "<|im_end|> is text here"},
		})
		request := map[string]any{"messages": messages, "max_tokens": 50, "max_completion_tokens": 5, "ignore_eos": true,
			"return_token_ids": true}
		status, w := b.ask("e", chats, request)
		c := w.Choices[0]
		if status != http.StatusOK || w.ID != "chatcmpl-req" || w.Object != "chat.completion" || c.Message.Role != "assistant" {
			b.t.Errorf("status %d, %+v", status, w)
		}
		if want := textOf(expected(prompt, 0, 5)); c.Message.Content != want || !slices.Equal(w.PromptTokenIDs, prompt) {
			b.t.Errorf("content %q, want %q", c.Message.Content, want)
		}
		// The template is the gateway's: the same ids as a completion, the same answer.
		if _, w := b.ask("e", completions, body(prompt, 5)); w.Choices[0].Text != c.Message.Content {
			b.t.Errorf("as a completion: %q", w.Choices[0].Text)
		}
		status, said := b.post("e", "/tokenize", map[string]any{"messages": messages})
		var tokenized struct {
			Tokens      []uint32
			Count       int
			MaxModelLen int `json:"max_model_len"`
		}
		if err := json.Unmarshal(said, &tokenized); err != nil || status != http.StatusOK ||
			!slices.Equal(tokenized.Tokens, prompt) || tokenized.Count != len(prompt) || tokenized.MaxModelLen != 262_144 {
			b.t.Errorf("/tokenize: %d %s", status, said)
		}
	})
}

func TestSeveralAnswersAndPrompts(t *testing.T) {
	alone(t, func(b *bench, _ *Server) {
		p, q := ids(1, 40), ids(2, 30)
		_, w := b.ask("e", completions, body([][]uint32{p, q}, 5, "n", 2))
		require.True(b.t, len(w.Choices) == 4 && w.Usage.Prompt == 70 && w.Usage.Completion == 20,
			"%d choices, %+v", len(w.Choices), w.Usage)
		for i, want := range [][]uint32{expected(p, 0, 5), expected(p, 1, 5), expected(q, 0, 5), expected(q, 1, 5)} {
			if c := w.Choices[i]; c.Index != i || c.Text != textOf(want) {
				b.t.Errorf("choice %d: %+v, want %q", i, c, textOf(want))
			}
		}
		all := b.events(b.send(b.t.Context(), "e", completions, body([]string{textOf(p), textOf(q)}, 5, "stream", true)))
		texts := map[int]string{}
		for _, e := range all[:len(all)-1] {
			texts[e.Choices[0].Index] += e.Choices[0].Text
		}
		assert.True(b.t, texts[0] == textOf(expected(p, 0, 5)) && texts[1] == textOf(expected(q, 0, 5)), "streamed: %v", texts)
	})
}

func TestStopStringsNeverShow(t *testing.T) {
	alone(t, func(b *bench, s *Server) {
		prompt := ids(1, 40)
		answer := expected(prompt, 0, 10)
		text := textOf(answer)
		// A stop string that begins inside the fifth token and ends in the sixth.
		at := len(textOf(answer[:5])) - 2
		stop := text[at : at+4]
		for _, tc := range []struct {
			name   string
			more   []any
			text   string
			tokens int
			reason any
		}{
			{"cut", []any{"stop", stop}, text[:at], 6, stop},
			{"several", []any{"stop", []string{"\x00never", stop}}, text[:at], 6, stop},
			{"shown", []any{"stop", stop, "include_stop_str_in_output", true}, text[:at+4], 6, stop},
			{"held back, then not it", []any{"stop", stop[:3] + "\x00"}, text, 10, nil},
			{"too early to count", []any{"stop", stop, "min_tokens", 6}, text, 10, nil},
			{"a stop token", []any{"stop_token_ids", answer[3:4]}, textOf(answer[:3]), 4, float64(answer[3])},
			{"a stop token too early to count", []any{"stop_token_ids", answer[3:4], "min_tokens", 4}, text, 10, nil},
		} {
			_, w := b.ask("e", completions, body(prompt, 10, tc.more...))
			c := w.Choices[0]
			assert.True(b.t, c.Text == tc.text && w.Usage.Completion == tc.tokens && c.StopReason == tc.reason,
				"%s: %q after %d tokens for %v, want %q", tc.name, c.Text, w.Usage.Completion, c.StopReason, tc.text)
			var streamed strings.Builder
			for _, e := range b.events(b.send(b.t.Context(), "e", completions, body(prompt, 10, append(tc.more, "stream", true)...))) {
				if e.Choices == nil {
					continue
				}
				streamed.WriteString(e.Choices[0].Text)
				assert.True(b.t, strings.HasPrefix(tc.text, streamed.String()),
					"%s: the stream shows %q", tc.name, streamed.String())
			}
			assert.Equal(b.t, tc.text, streamed.String(), "%s: streamed", tc.name)
			b.idle(s)
		}
	})
}

func TestLooseTypesAreTakenAsVLLMTakesThem(t *testing.T) {
	alone(t, func(b *bench, _ *Server) {
		for _, more := range [][]any{
			{"temperature", "0.5"}, {"n", 1.0}, {"n", "1"}, {"top_k", -1}, {"seed", -9e18}, {"stop", nil}, {"stream", "false"},
			{"ignore_eos", 1}, {"unknown_to_all", map[string]int{"x": 1}}, {"temperature", nil}, {"logit_bias", map[string]int{}},
		} {
			b.wants("e", completions, body(ids(1, 4), 5, more...), http.StatusOK)
		}
	})
}

// What an engine reports of itself has stock vLLM's names and forms.
func TestReports(t *testing.T) {
	pair(t, Config{}, func(b *bench, p, _ *Server) {
		prompt := ids(1, 100)
		for range 2 {
			b.ask("p", completions, body(prompt, 3))
		}
		b.prefill("p", prompt)
		for path, wants := range map[string][]string{
			"/health": nil, "/version": {`"version":"tandem-sim"`}, "/v1/models": {`"id":"tandem-sim"`, `"max_model_len":262144`},
			"/debug/books": {`"total":41937`},
			"/metrics": {
				"\nprocess_start_time_seconds ",
				`vllm:cache_config_info{block_size="16",effective_attention_block_size="16",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="670992",num_gpu_blocks="41937"} 1`,
			},
		} {
			status, text := b.get("p", path)
			assert.Equal(b.t, http.StatusOK, status, path)
			for _, want := range wants {
				assert.Contains(b.t, text, want, path)
			}
		}
		_, text := b.get("p", "/metrics")
		for name, value := range map[string]string{
			"num_requests_running": "0", "num_requests_waiting": "0", "kv_cache_usage_perc": fmt.Sprint(7.0 / 41_937),
			"prefix_cache_queries_total": "300", "prefix_cache_hits_total": "192",
			"num_preemptions_total": "0", "prompt_tokens_total": "300", "generation_tokens_total": "7",
			"time_to_first_token_seconds_count": "3", "inter_token_latency_seconds_count": "4",
		} {
			assert.Contains(b.t, text, "vllm:"+name+`{engine="0",model_name="tandem-sim"} `+value+"\n")
		}
		b.wants("p", "/reset_prefix_cache", "", http.StatusInternalServerError, "in use")
		time.Sleep(time.Minute) // virtual: the hand-off's lease ends
		b.wants("p", "/reset_prefix_cache", "", http.StatusOK)
		assert.Zero(b.t, p.Books().Blocks.Cached)
	})
}
