package openai

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTextsEqualEncodingJSON decodes random strings, made of runs and escapes of all kinds and lengths, by both.
func TestTextsEqualEncodingJSON(t *testing.T) {
	pieces := []string{"a", "plain run", "a run of more than sixteen bytes", "é", "日本語", "😀", "\x7f",
		`\n`, `\"`, `\\`, `\/`, `\b`, `\f`, `\r`, `\t`, `\u0000`, `\u00e9`, `\uFFFD`, `\u2028`, `\ud83d\ude00`, `\uDBFF\uDFFF`}
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var b strings.Builder
		for range rng.IntN(30) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		quoted := `"` + b.String() + `"`
		var want string
		require.NoError(t, json.Unmarshal([]byte(quoted), &want))
		c := newCursor([]byte(quoted), deepest)
		at, ok := c.str()
		require.True(t, ok && c.finish() && at.decoded == len(want) && at.decode(c.data) == want, "seed %d: %s, want %q", seed, quoted, want)
		for cut := 1; cut < len(quoted); cut++ {
			c := newCursor([]byte(quoted[:cut]), deepest)
			_, ok := c.str()
			require.False(t, ok, "seed %d: accepted %s", seed, quoted[:cut])
		}
		var back string
		require.True(t, json.Unmarshal(appendQuoted(nil, want), &back) == nil && back == want,
			"seed %d: %q quoted and read is %q", seed, want, back)
	}
}

func TestBadEscapes(t *testing.T) {
	for _, s := range []string{`\a`, `\u12`, `\u123g`, `\U0041`, `\ud800`, `\ud800x`, `\ud800\n`, `\ud800\u0041`, `\udc00`,
		`\udc00\ud800`, `\`, `\'`, `\x41`} {
		c := newCursor([]byte(`"`+s+`"`), deepest)
		_, ok := c.str()
		assert.False(t, ok && c.finish(), s)
	}
}
