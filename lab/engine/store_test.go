package engine

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// What one engine has computed another loads, in whole chunks; what a store has lost is computed again, and no answer differs.
func TestEnginesShareAStore(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		dir := t.TempDir()
		for _, id := range []string{"p", "d", "e"} {
			b.engine(Config{ID: id, Engine: "vllm", Connector: "lmcache", Store: dir})
		}
		prompt := ids(1, 1000)
		for _, step := range []struct {
			engine string
			cached int
		}{{"p", 0}, {"d", 768}, {"p", 992}} { // its own cache has whole blocks of 16 tokens, and more of them
			status, w := b.ask(step.engine, completions, body(prompt, 20, "kv_transfer_params", map[string]any{"do_remote_prefill": true}))
			if status != http.StatusOK || w.Choices[0].Text != textOf(expected(prompt, 0, 20)) || w.Usage.Details.Cached != step.cached {
				t.Errorf("%s: %d, %+v, want %d cached", step.engine, status, w.Usage, step.cached)
			}
		}
		kept, err := os.ReadDir(dir)
		require.True(t, err == nil && len(kept) == 3, "%d chunks kept: %v", len(kept), err)
		for _, chunk := range kept {
			require.NoError(t, os.Remove(dir+"/"+chunk.Name()))
		}
		if _, w := b.ask("e", completions, body(prompt, 20)); w.Choices[0].Text != textOf(expected(prompt, 0, 20)) || w.Usage.Details.Cached != 0 {
			t.Errorf("without the store's chunks: %+v", w.Usage)
		}
	})
}

func TestStoreThatCannotBeUsed(t *testing.T) {
	for name, cfg := range map[string]Config{
		"without the connector": {Store: t.TempDir()},
		"without a directory":   {Engine: "vllm", Connector: "lmcache"},
		"in a file":             {Engine: "vllm", Connector: "lmcache", Store: "store_test.go"},
	} {
		if _, err := NewServer(cfg, nil); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
