package edge

import (
	"strings"
	"testing"
)

func TestReadThreshold(t *testing.T) {
	half, many := 0.5, 900
	all := []BusyThreshold{{Model: "m", DecodeBlocks: &half, PrefillTokens: &many}, {Model: "other"}}
	for _, c := range []struct {
		body          string
		blocks        float64 // 0: none
		tokens        int
		refused, says string
	}{
		{`{"model":"m"}`, 0.5, 900, "", ""},
		{`{"model":"m","active_decode_blocks_threshold":0.85}`, 0.85, 900, "", ""},
		{`{"model":"m","active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":7}`, 0, 7, "", ""},
		{`{"model":"other","active_decode_blocks_threshold":1}`, 1, 0, "", ""},
		{`{"model":"x"}`, 0, 0, "model", "x"},
		{`{}`, 0, 0, "model", "missing"},
		{`{"model":"m","active_decode_blocks_threshold":1.01}`, 0, 0, "active_decode_blocks_threshold", "share"},
		{`{"model":"m","active_decode_blocks_threshold":0}`, 0, 0, "active_decode_blocks_threshold", "share"},
		{`{"model":"m","active_decode_blocks_threshold":"1"}`, 0, 0, "active_decode_blocks_threshold", "share"},
		{`{"model":"m","active_prefill_tokens_threshold":1.5}`, 0, 0, "active_prefill_tokens_threshold", "tokens"},
		{`{"model":"m","active_prefill_tokens_threshold":-1}`, 0, 0, "active_prefill_tokens_threshold", "tokens"},
		{`{"model":"m","threshold":1}`, 0, 0, "", "one object"},
		{`{"model":"m"}{}`, 0, 0, "", "one object"},
		{``, 0, 0, "", "one object"},
	} {
		got, e := readThreshold([]byte(c.body), all)
		if c.says != "" {
			if e == nil || e.Param != c.refused || !strings.Contains(e.Message, c.says) {
				t.Errorf("%s: %v, want %s refused: %s", c.body, e, c.refused, c.says)
			}
			continue
		}
		if e != nil {
			t.Errorf("%s: %v", c.body, e)
			continue
		}
		if blocks := got.DecodeBlocks; (blocks == nil) != (c.blocks == 0) || blocks != nil && *blocks != c.blocks {
			t.Errorf("%s: blocks %v, want %v", c.body, blocks, c.blocks)
		}
		if tokens := got.PrefillTokens; (tokens == nil) != (c.tokens == 0) || tokens != nil && *tokens != c.tokens {
			t.Errorf("%s: tokens %v, want %v", c.body, tokens, c.tokens)
		}
	}
	if half != 0.5 || many != 900 {
		t.Error("what is in force was changed by reading")
	}
}
