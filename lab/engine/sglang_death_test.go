package engine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// Ids that SGLang 0.5.23 compares with no vocabulary end its process: for 5 s its port is silent, then everything is
// closed (recorded in real/sglang/REPORT.md, fault 1). Those that it does compare, or does not use, end nothing.
func TestSGLangDies(t *testing.T) {
	vocab := tokens.Sim().VocabSize()
	for _, c := range []struct {
		name, engine, path string
		members            []any
		status             int // 0: it dies
	}{
		{"prompt", "alone", completions, []any{"prompt", []int{5, vocab}}, 0},
		{"prompt in a list", "alone", completions, []any{"prompt", [][]int{{5, vocab}}}, 0},
		{"negative prompt", "alone", completions, []any{"prompt", []int{5, -1}}, 0},
		{"prompt at prefill", "p", completions, append(rendezvous(5), "prompt", []int{5, vocab}), 0},
		{"input_ids", "alone", chats, []any{"input_ids", []int{5, vocab}, "prompt", nil, "messages",
			[]any{map[string]any{"role": "user", "content": "x"}}}, 0},
		{"the last id", "alone", completions, []any{"prompt", []int{5, vocab - 1}}, 200},
		{"stop_token_ids", "alone", completions, []any{"stop_token_ids", []int{vocab + 1}, "min_tokens", 1}, 0},
		{"negative stop_token_ids", "alone", completions, []any{"stop_token_ids", []int{-1}, "min_tokens", 1}, 0},
		{"stop_token_ids without min_tokens", "alone", completions, []any{"stop_token_ids", []int{1 << 60}}, 200},
		{"stop_token_ids at the vocabulary's size", "alone", completions, []any{"stop_token_ids", []int{vocab}, "min_tokens", 1}, 200},
		{"more logprobs than tokens", "alone", completions, []any{"logprobs", vocab + 1}, 0},
		{"as many logprobs", "alone", completions, []any{"logprobs", vocab}, 200},
		{"more top_logprobs than tokens", "alone", chats,
			[]any{"logprobs", true, "top_logprobs", vocab + 1, "prompt", nil, "messages", []any{map[string]any{"role": "user", "content": "x"}}}, 0},
		{"zeros", "alone", completions, []any{"prompt", []int{0, 0}}, 400},
		{"logit_bias", "alone", completions, []any{"logit_bias", map[string]int{"-1": 0}}, 400},
		{"no bootstrap_host at decode", "d", completions, []any{"bootstrap_room", 5}, 0},
		{"prompt that is no list of ids", "alone", completions, []any{"prompt", json.RawMessage("[5,1.5]")}, 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				sglangPair(b, nil)
				ask := func() (status int, took time.Duration) {
					began := time.Now()
					raw, _ := json.Marshal(body([]uint32{5, 6}, 4, c.members...))
					res, err := b.client.Post("http://"+c.engine+c.path, "application/json", strings.NewReader(string(raw)))
					if err == nil {
						status = res.StatusCode
						res.Body.Close()
					}
					return status, time.Since(began)
				}
				if status, took := ask(); status != c.status || (status == 0) != (took == 5*time.Second) {
					t.Fatalf("status %d after %v, want %d", status, took, c.status)
				}
				if c.status != 0 {
					return
				}
				if res, err := b.client.Get("http://" + c.engine + "/health"); err == nil {
					t.Errorf("status %d of a dead engine's health", res.StatusCode)
				}
				if status, took := ask(); status != 0 || took > 0 {
					t.Errorf("status %d after %v once it is closed", status, took)
				}
			})
		})
	}
}
