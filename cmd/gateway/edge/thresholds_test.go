package edge

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadThreshold(t *testing.T) {
	all := []BusyThreshold{{Model: "m", DecodeBlocks: new(0.5), PrefillTokens: new(900)}, {Model: "other"}}
	for _, c := range []struct {
		body              string
		blocks            *float64
		tokens            *int
		refused, contains string
	}{
		{`{"model":"m"}`, new(0.5), new(900), "", ""},
		{`{"model":"m","active_decode_blocks_threshold":0.85}`, new(0.85), new(900), "", ""},
		{`{"model":"m","active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":7}`, nil, new(7), "", ""},
		{`{"model":"other","active_decode_blocks_threshold":1}`, new(1.0), nil, "", ""},
		{`{"model":"x"}`, nil, nil, "model", "x"},
		{`{}`, nil, nil, "model", "missing"},
		{`{"model":"m","active_decode_blocks_threshold":1.01}`, nil, nil, "active_decode_blocks_threshold", "share"},
		{`{"model":"m","active_decode_blocks_threshold":0}`, nil, nil, "active_decode_blocks_threshold", "share"},
		{`{"model":"m","active_decode_blocks_threshold":"1"}`, nil, nil, "active_decode_blocks_threshold", "share"},
		{`{"model":"m","active_prefill_tokens_threshold":1.5}`, nil, nil, "active_prefill_tokens_threshold", "tokens"},
		{`{"model":"m","active_prefill_tokens_threshold":-1}`, nil, nil, "active_prefill_tokens_threshold", "tokens"},
		{`{"model":"m","threshold":1}`, nil, nil, "", "one object"},
		{`{"model":"m"}{}`, nil, nil, "", "one object"},
		{``, nil, nil, "", "one object"},
	} {
		got, e := readThreshold([]byte(c.body), all)
		if c.contains != "" {
			assert.True(t, e != nil && e.Param == c.refused && strings.Contains(e.Message, c.contains),
				"%s: %v, want %s refused: %s", c.body, e, c.refused, c.contains)
			continue
		}
		require.Nil(t, e, c.body)
		assert.Equal(t, c.blocks, got.DecodeBlocks, c.body)
		assert.Equal(t, c.tokens, got.PrefillTokens, c.body)
	}
	assert.True(t, *all[0].DecodeBlocks == 0.5 && *all[0].PrefillTokens == 900, "what is in force was changed by reading")
}
