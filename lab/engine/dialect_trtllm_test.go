package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const tensorRTID = 1 << 62

// contextAnswer is what a context worker's answer has for the gateway.
type contextAnswer struct {
	Choices []struct {
		Text         string
		FinishReason string          `json:"finish_reason"`
		Params       json.RawMessage `json:"disaggregated_params"`
	}
	PromptTokenIDs []uint32 `json:"prompt_token_ids"`
}

// context runs the context leg and returns its answer.
func (b *bench) context(id int64, body map[string]any) contextAnswer {
	b.t.Helper()
	body["disaggregated_params"] = map[string]any{"request_type": "context_only", "disagg_request_id": id}
	status, raw := b.post("p", completions, body)
	var a contextAnswer
	require.True(b.t, json.Unmarshal(raw, &a) == nil && status == http.StatusOK && len(a.Choices) == 1,
		"context: %d %s", status, raw)
	return a
}

// generation is the generation leg of a context's answer, with its params changed.
func generation(a contextAnswer, maxTokens int, old, new string) map[string]any {
	params := strings.Replace(string(a.Choices[0].Params), `"context_only"`, `"generation_only"`, 1)
	return body(a.PromptTokenIDs, maxTokens, "disaggregated_params", json.RawMessage(strings.Replace(params, old, new, 1)))
}

// rests gives both engines the time that they take to notice what has ended.
func (b *bench) rests(engines ...*Server) {
	b.t.Helper()
	time.Sleep(3 * time.Second)
	b.idle(engines...)
}

// An answer that ends with its first token is complete, and nothing is kept for it.
func TestTensorRTEarlyFinish(t *testing.T) {
	pair(t, Config{Engine: "trtllm"}, func(b *bench, p, _ *Server) {
		first := expected(ids(2, 40), 0, 1)
		for i, more := range [][]any{{"stop_token_ids", first}, {"stop", strings.TrimSpace(textOf(first))}} {
			assert.Equal(b.t, "stop", b.context(tensorRTID+int64(i), body(ids(2, 40), 8, more...)).Choices[0].FinishReason)
			b.rests(p)
		}
	})
}

// What a hand-off lacks, or has of another process, fails or hangs: it is never served.
func TestTensorRTWrongHandOffs(t *testing.T) {
	pair(t, Config{Engine: "trtllm"}, func(b *bench, p, d *Server) {
		prompt := ids(3, 64)
		for _, c := range []struct {
			name, old, new string
			message        string
			after          time.Duration
		}{
			{"no context id", fmt.Sprintf(`"ctx_request_id":%d`, tensorRTID), `"ctx_request_id":null`, "ctx_request_id", 0},
			{"an id of the worker's own", fmt.Sprintf(`"disagg_request_id":%d`, tensorRTID), `"disagg_request_id":7`, "global id", 0},
			{"no first token", `"first_gen_tokens":[`, `"first_gen_tokens":null,"draft_tokens":[`, "first_gen_tokens", 0},
			{"no state", `"encoded_opaque_state":"`, `"encoded_opaque_state":"!`, "encoded_opaque_state", 0},
			{"a state of an earlier run", "eyJlbmdpbmUiOiJwLzEiLCJob3N0IjoicC1rdiIsInBvcnQiOjU2MDB9",
				"eyJlbmdpbmUiOiJwLzAiLCJob3N0IjoicC1rdiIsInBvcnQiOjU2MDB9", "Error in kv cache transfer", 0},
			{"a state that no engine made", "eyJlbmdpbmUiOiJwLzEiLCJob3N0IjoicC1rdiIsInBvcnQiOjU2MDB9",
				"eyJlbmdpbmUiOiJwLzEiLCJob3N0Ijoibm93aGVyZSIsInBvcnQiOjU2MDB9", "Error in kv cache transfer", 0},
			{"an unknown field", `{`, `{"x":1,`, "Extra inputs are not permitted", 0},
			{"another's id", fmt.Sprintf(`"disagg_request_id":%d`, tensorRTID), fmt.Sprintf(`"disagg_request_id":%d`, tensorRTID+9),
				"kv cache transfer", time.Minute},
		} {
			a := b.context(tensorRTID, body(prompt, 4))
			start := time.Now()
			status, raw := b.post("d", completions, generation(a, 4, c.old, c.new))
			if status != http.StatusBadRequest || !strings.Contains(string(raw), c.message) || time.Since(start) < c.after ||
				time.Since(start) > c.after+time.Second {
				b.t.Errorf("%s: %d %s after %v", c.name, status, raw, time.Since(start))
			}
			// The context's half is still there, for its time-out and not longer.
			assert.True(b.t, c.after != 0 || len(p.Books().Pinned) == 1, "%s: %+v", c.name, p.Books())
			time.Sleep(time.Minute)
			b.rests(p, d)
		}
	})
}

// Generation-first: a leg whose other half never comes gives up.
func TestTensorRTGenerationFirst(t *testing.T) {
	pair(t, Config{Engine: "trtllm"}, func(b *bench, p, d *Server) {
		_, info := b.get("p", "/server_info")
		_, endpoint, _ := strings.Cut(info, `"ctx_info_endpoint":["`)
		endpoint, _, _ = strings.Cut(endpoint, `"`)
		for engine, style := range map[string]string{"p": "context_only", "d": "generation_only"} {
			start, id := time.Now(), tensorRTID+int64(len(style)) // an id of its own: that of a request which has ended is remembered
			b.wants(engine, completions, body(ids(6, 70), 6, "disaggregated_params",
				map[string]any{"request_type": style, "ctx_request_id": id, "disagg_request_id": id,
					"schedule_style": 1, "ctx_info_endpoint": endpoint}), http.StatusBadRequest)
			assert.Equal(b.t, time.Minute, time.Since(start).Truncate(time.Second), "%s gave up", engine)
			b.rests(p, d)
		}
	})
}

// Every model forbids what it does not know, and names it.
func TestTensorRTRefusals(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.engine(Config{ID: "e", Engine: "trtllm"})
		b.engine(Config{ID: "old", Engine: "trtllm", EngineVersion: "1.2.1"})
		const say = `"messages":[{"role":"user","content":"hi"}]`
		for _, c := range []struct{ engine, path, body, want string }{
			{"e", completions, `{"model":"m","prompt":"hi","x":1}`, `'loc': ('body', 'x'), 'msg': 'Extra inputs are not permitted'`},
			{"e", completions, `{"model":"m","prompt":"hi","max_completion_tokens":1}`, `'max_completion_tokens'`},
			{"e", completions, `{"model":"m","prompt":"hi","cache_salt":"a"}`, `'cache_salt'`},
			{"e", completions, `{"model":"m","prompt":"hi","return_token_ids":true}`, `'return_token_ids'`},
			{"e", completions, `{"prompt":"hi"}`, `Field required`},
			{"e", completions, `{"model":"m","prompt":"hi","stream_options":{}}`, `'stream_options'`},
			{"e", completions, `{"model":"m","prompt":"hi","priority":5}`, `'priority'`},
			{"e", completions, `{"model":"m","prompt":"hi","truncate_prompt_tokens":-1}`, `'truncate_prompt_tokens'`},
			{"e", chats, `{"model":"m",` + say + `,"max_tokens":1,"max_completion_tokens":1}`, `'max_completion_tokens'`},
			{"e", chats, `{"model":"m",` + say + `,"tool_choice":"required"}`, "`tools` must be set"},
			{"e", chats, `{"model":"m",` + say + `,"tools":[{"type":"function","function":{"name":"f","x":1}}]}`,
				`('body', 'tools', 0, 'function', 'x')`},
			{"e", chats, `{"model":"m",` + say + `,"top_logprobs":1}`, `'top_logprobs'`},
			{"e", chats, `{"model":"m",` + say + `,"cache_salt":" "}`, `'cache_salt'`},
			{"e", chats, `{"model":"m",` + say + `,"disaggregated_params":{"request_type":"context_only","disagg_request_id":1099511627775}}`, `global id`},
			{"old", chats, `{"model":"m",` + say +
				`,"disaggregated_params":{"request_type":"context_only","disagg_request_id":1099511627776}}`, `global id`},
			{"old", chats, `{"model":"m",` + say + `,"disaggregated_params":{"request_type":"context_only","schedule_style":1}}`,
				`'schedule_style'`},
			{"e", chats, `{"model":"m",` + say + `,"disaggregated_params":{"request_type":"x"}}`, `Unknown request type`},
		} {
			b.wants(c.engine, c.path, c.body, http.StatusBadRequest, c.want)
		}
	})
}

// What it reports: the model by id alone, its health whatever happens, iteration stats once, Prometheus elsewhere.
func TestTensorRTReports(t *testing.T) {
	pair(t, Config{Engine: "trtllm"}, func(b *bench, p, _ *Server) {
		for path, want := range map[string]string{
			"/v1/models": `"owned_by":"tensorrt_llm"`, "/version": `"1.3.0"`, "/health": "",
			"/prometheus/metrics": "trtllm_kv_cache_utilization", "/metrics": "[]",
		} {
			if status, raw := b.get("p", path); status != http.StatusOK || !strings.Contains(raw, want) || strings.Contains(raw, "max_model_len") {
				b.t.Errorf("%s: %d %s", path, status, raw)
			}
		}
		b.context(tensorRTID, body(ids(1, 40), 4))
		if _, first := b.get("p", "/metrics"); !strings.Contains(first, "kvCacheStats") {
			b.t.Errorf("%s", first)
		}
		if _, again := b.get("p", "/metrics"); again != "[]" {
			b.t.Errorf("not drained: %s", again)
		}
		ctx, cancel := context.WithCancel(b.t.Context())
		cancel()
		_ = p.Drain(ctx)
		if status, _ := b.get("p", "/health"); status != http.StatusOK {
			b.t.Errorf("health: %d", status)
		}
		time.Sleep(time.Minute)
	})
}
