package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

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

func TestWholeCompletion(t *testing.T) {
	alone(t, func(b *bench, _ *Server) {
		prompt := ids(1, 100)
		status, w := b.ask("e", completions, body(prompt, 7, "return_token_ids", true))
		want := expected(prompt, 0, 7)
		if status != http.StatusOK || w.ID != "cmpl-req" || w.Object != "text_completion" || w.Model != "tandem-sim" {
			b.t.Errorf("status %d, %+v", status, w)
		}
		c := w.Choices[0]
		if c.Text != textOf(want) || c.FinishReason != "length" || !slices.Equal(c.TokenIDs, want) || !slices.Equal(c.PromptTokenIDs, prompt) {
			b.t.Errorf("choice %+v, want %q", c, textOf(want))
		}
		if w.Usage.Prompt != 100 || w.Usage.Completion != 7 || w.Usage.Total != 107 || w.Usage.Details.Cached != 0 {
			b.t.Errorf("usage %+v", w.Usage)
		}
		if _, w = b.ask("e", completions, body(prompt, 7)); w.Usage.Details.Cached != 96 {
			b.t.Errorf("asked again: usage %+v, want 96 tokens cached", w.Usage)
		}
	})
}

func TestWholeChat(t *testing.T) {
	alone(t, func(b *bench, _ *Server) {
		messages := []map[string]any{
			{"role": "system", "content": "be brief"},
			{"role": "user", "content": []map[string]string{{"type": "text", "text": "one"}, {"type": "image_url"}, {"type": "text", "text": "two"}}},
			{"role": "assistant", "content": nil},
			{"role": "user", "content": "<|im_end|> is text here"},
		}
		prompt := tokens.Sim().EncodeChat(nil, []tokens.Message{
			{Role: "system", Content: "be brief"}, {Role: "user", Content: "one\ntwo"}, {Role: "assistant"}, {Role: "user", Content: "<|im_end|> is text here"},
		})
		request := map[string]any{"messages": messages, "max_tokens": 50, "max_completion_tokens": 5, "ignore_eos": true, "return_token_ids": true}
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

func TestStreams(t *testing.T) {
	alone(t, func(b *bench, _ *Server) {
		prompt := ids(1, 40)
		for extra, options := range map[int][]any{1: nil, 2: {"stream_options", map[string]any{"include_usage": true}}} { // events next to one a token
			resp := b.send(b.t.Context(), "e", completions, body(prompt, 6, append(options, "stream", true)...))
			assert.Equal(b.t, "text/event-stream; charset=utf-8", resp.Header.Get("Content-Type"), "content type")
			all := b.events(resp)
			require.True(b.t, len(all) == 6+extra && string(all[len(all)-1].data) == "[DONE]",
				"%d events, the last is %s", len(all), all[len(all)-1].data)
			text := ""
			for _, e := range all[:6] {
				text += e.Choices[0].Text
			}
			if want := textOf(expected(prompt, 0, 6)); text != want || all[5].Choices[0].FinishReason != "length" || all[4].Choices[0].FinishReason != "" {
				b.t.Errorf("text %q, want %q", text, want)
			}
			assert.True(b.t, extra != 2 || len(all[6].Choices) == 0 && all[6].Usage.Completion == 6,
				"usage event %s", all[6].data)
		}
	})
}

func TestChatStreamBeginsWithItsRole(t *testing.T) {
	alone(t, func(b *bench, _ *Server) {
		all := b.events(b.send(b.t.Context(), "e", chats, chat(3, "stream", true, "return_token_ids", true)))
		require.Len(b.t, all, 5, "events")
		if d := all[0].Choices[0].Delta; d.Role != "assistant" || d.Content != "" || all[0].PromptTokenIDs == nil {
			b.t.Errorf("first event %s", all[0].data)
		}
		for _, e := range all[1:4] {
			if c := e.Choices[0]; c.Delta.Role != "" || c.Delta.Content == "" || len(c.TokenIDs) != 1 || e.Object != "chat.completion.chunk" || e.PromptTokenIDs != nil {
				b.t.Errorf("event %s", e.data)
			}
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

func TestRefusals(t *testing.T) {
	alone(t, func(b *bench, s *Server) {
		p := ids(1, 4)
		long := fmt.Sprint(slices.Repeat([]int{260}, 262_144))
		long = strings.ReplaceAll(long, " ", ",")
		for _, tc := range []struct {
			path   string
			body   any
			status int
			param  string
		}{
			{completions, `{`, 400, ""},
			{completions, `null`, 400, ""},
			{completions, `{"model":"other","prompt":"x"}`, 404, "model"},
			{completions, `{"model":7,"prompt":"x"}`, 400, "model"},
			{completions, `{}`, 400, "prompt"},
			{completions, `{"prompt":""}`, 400, "prompt"},
			{completions, `{"prompt":[]}`, 400, "prompt"},
			{completions, `{"prompt":7}`, 400, "prompt"},
			{completions, `{"prompt":[1,-2]}`, 400, "prompt"},
			{completions, `{"prompt":[1,2.5]}`, 400, "prompt"},
			{completions, `{"prompt":[4000000000]}`, 400, "prompt"},
			{completions, `{"prompt":[[1],7]}`, 400, "prompt"},
			{completions, `{"prompt":` + long + `}`, 400, "prompt"},
			{completions, body(p, 262_144), 400, "max_tokens"},
			{completions, body(p, 0), 400, "max_tokens"},
			{completions, body(p, 5, "n", 0), 400, "n"},
			{completions, body(p, 5, "n", "many"), 400, "n"},
			{completions, body(p, 5, "min_tokens", 6), 400, "min_tokens"},
			{completions, body(p, 5, "temperature", -1), 400, "temperature"},
			{completions, body(p, 5, "temperature", "hot"), 400, "temperature"},
			{completions, body(p, 5, "top_p", 0), 400, "top_p"},
			{completions, body(p, 5, "stream", "perhaps"), 400, "stream"},
			{completions, body(p, 5, "stop", []int{1}), 400, "stop"},
			{completions, body(p, 5, "stop", ""), 400, "stop"},
			{completions, body(p, 5, "stop_token_ids", "x"), 400, "stop_token_ids"},
			{completions, body(p, 5, "stream_options", map[string]bool{"include_usage": false}), 400, "stream_options"},
			{completions, body(p, 5, "stream", true, "stream_options", 3), 400, "stream_options"},
			{completions, body(p, 5, "stream", true, "stream_options", map[string]any{"include_usage": []int{}}), 400, "stream_options"},
			{completions, body(p, 5, "echo", true), 400, "echo"},
			{completions, body(p, 5, "suffix", "x"), 400, "suffix"},
			{chats, `{"messages":[]}`, 400, "messages"},
			{chats, `{"messages":[{"role":"user","content":7}]}`, 400, "messages[0].content"},
			{"/tokenize", `{}`, 400, "prompt"},
			{"/tokenize", `{"messages":7}`, 400, "messages"},
		} {
			status, w := b.ask("e", tc.path, tc.body)
			if w.Error == nil || status != tc.status || w.Error.Code != tc.status || w.Error.Param != tc.param || w.Error.Message == "" || w.Error.Type == "" {
				b.t.Errorf("%s %.80v: %d %+v, want %d about %q", tc.path, tc.body, status, w.Error, tc.status, tc.param)
			}
		}
		b.idle(s)
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

func TestMetricsCarryVLLMsNames(t *testing.T) {
	pair(t, Config{}, func(b *bench, _, _ *Server) {
		prompt := ids(1, 100)
		b.ask("p", completions, body(prompt, 3))
		b.ask("p", completions, body(prompt, 3))
		b.prefill("p", prompt)
		_, text := b.get("p", "/metrics")
		const labels = `{engine="0",model_name="tandem-sim"}`
		for name, value := range map[string]string{
			"vllm:num_requests_running": "0", "vllm:num_requests_waiting": "0", "vllm:kv_cache_usage_perc": fmt.Sprint(7.0 / 41_937),
			"vllm:prefix_cache_queries_total": "300", "vllm:prefix_cache_hits_total": "192", "vllm:num_preemptions_total": "0",
			"vllm:prompt_tokens_total": "300", "vllm:generation_tokens_total": "7",
			"vllm:time_to_first_token_seconds_count": "3", "vllm:inter_token_latency_seconds_count": "4",
		} {
			assert.Contains(b.t, text, name+labels+" "+value+"\n", "no %s%s %s", name, labels, value)
		}
	})
}

func TestSmallFaces(t *testing.T) {
	alone(t, func(b *bench, s *Server) {
		prompt := "a secret prompt"
		b.ask("e", completions, body(prompt, 3))
		if status, text := b.get("e", "/v1/models"); status != http.StatusOK || !strings.Contains(text, `"id":"tandem-sim"`) || !strings.Contains(text, `"max_model_len":262144`) {
			b.t.Errorf("/v1/models: %d %s", status, text)
		}
		for path, want := range map[string]string{ // as stock vLLM reports itself
			"/health": "", "/version": `"version":"tandem-sim"`,
			"/metrics": `vllm:cache_config_info{block_size="16",effective_attention_block_size="16",engine="0",kv_cache_size_tokens="670992",num_gpu_blocks="41937"} 1`,
		} {
			status, text := b.get("e", path)
			if status != http.StatusOK || !strings.Contains(text, want) || path == "/metrics" && !strings.Contains(text, "\nprocess_start_time_seconds ") {
				b.t.Errorf("%s: %d %.400s", path, status, text)
			}
		}
		status, text := b.get("e", "/debug/books")
		var books Books
		if err := json.Unmarshal([]byte(text), &books); err != nil || status != http.StatusOK || !books.Idle() ||
			books.Blocks.Total != 41_937 || strings.Contains(text, "secret") || strings.Contains(text, "null") {
			b.t.Errorf("/debug/books: %d %s", status, text)
		}
		if status, _ := b.post("e", "/reset_prefix_cache", ""); status != http.StatusOK || s.Books().Blocks.Cached != 0 {
			b.t.Errorf("/reset_prefix_cache: %d, %d blocks left", status, s.Books().Blocks.Cached)
		}
		b.wants("e", "/tokenize", map[string]string{"prompt": prompt}, http.StatusOK, `"count":`)
	})
}

func TestCompressedBodiesAreRefused(t *testing.T) {
	alone(t, func(b *bench, s *Server) {
		for _, path := range []string{completions, chats, "/tokenize"} {
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("\x1f\x8b\x08"))
			r.Header.Set("Content-Encoding", "gzip")
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			assert.Equal(b.t, http.StatusUnsupportedMediaType, w.Code, "%s: status, %s", path, w.Body)
		}
	})
}
