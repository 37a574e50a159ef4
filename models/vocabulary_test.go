package models

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// The bound of token ids is the engine's own where it is reported, then the rows of the embedding, then what the tokenizer
// has, which the folder's is 4 of. A text is refused if the tokenizer makes tokens of it that the model does not have.
func TestVocabularySize(t *testing.T) {
	for _, c := range []struct {
		reported int
		config   string // config.json, empty for none
		bare     bool   // no language
		want     int
	}{
		{bare: true},
		{reported: 151_936, bare: true, want: 151_936},
		{reported: 151_936, config: `{"vocab_size":1000}`, want: 151_936},
		{config: `{"vocab_size":151936}`, want: 151_936}, // of Qwen2.5, whose tokenizer has 151,665
		{config: `{"vocab_size":7,"text_config":{"vocab_size":262208}}`, want: 262_208},
		{config: `{"language_config":{"vocab_size":129280}}`, want: 129_280},
		{config: `{"vocab_size":"many"}`, want: -1},
		{config: `[`, want: -1},
		{want: -1},
	} {
		var l *Language
		if !c.bare {
			files := map[string]string{"config.json": c.config}
			if c.config == "" {
				files = nil
			}
			l = loaded(t, 1<<20, files)
			if c.want < 0 {
				c.want = l.Tokenizer().Tokenizer().VocabSize()
			}
		}
		card := Card{vocab: c.reported}
		assert.Equal(t, c.want, card.VocabSize(l), "%+v", c)
	}
	l := Sim(1 << 20)
	l.vocab = 3
	_, _, err := (&Card{}).Tokens(scanned(t, openai.Completions, `{"model":"m","prompt":"Hello"}`), l)
	assert.ErrorContains(t, err, "no embedding")
}

// Where no size is known, what SGLang does not check itself is refused, other engines check ids, and one line of the log
// says so.
func TestUnknownVocabulary(t *testing.T) {
	for engine, refused := range map[string]bool{"sglang": true, "vllm": false} {
		w := process("w", "")
		w.Engine = engine
		l, log := library(t, Config{}, nil, w)
		for range 2 {
			l.reportUnsized("m")
		}
		assert.Equal(t, 1, strings.Count(log.String(), "vocabulary size unknown"), "%s: %s", engine, log)
		assert.Equal(t, refused, strings.Contains(log.String(), "refused"), "%s: %s", engine, log)
		card, _ := CardOf(l.roster, "m")
		for _, c := range []struct{ members, param string }{
			{`"prompt":[1]`, "prompt"},
			{`"prompt":"a","stop_token_ids":[1],"min_tokens":1`, "stop_token_ids"},
			{`"prompt":"a","stop_token_ids":[1]`, ""},
			{`"prompt":"a","logprobs":21`, "logprobs"},
			{`"prompt":"a","logprobs":20`, ""},
			{`"prompt":"a","logit_bias":{"1":1}`, ""},
		} {
			err := card.CheckIDs(scanned(t, openai.Completions, `{"model":"m",`+c.members+`}`), nil)
			assert.True(t, (err != nil) == (refused && c.param != "") && (err == nil || err.Param == c.param),
				"%s, %s: %v", engine, c.members, err)
		}
		for url, local := range map[string]bool{
			"https://h/x.png": false, "http://h/x": false, "data:image/png;base64,eA==": false,
			"file:///etc/passwd": true, "/etc/x.png": true, "x.png": true, `\u0066ile:///x`: true,
		} {
			for _, part := range []string{`{"type":"image_url","image_url":{"url":"` + url + `"}}`,
				`{"type":"video_url","video_url":"` + url + `"}`} {
				err := card.CheckIDs(scanned(t, openai.Chat, `{"model":"m","messages":[{"role":"user","content":[`+part+`]}]}`), nil)
				assert.Equal(t, (refused && local), err != nil, "%s, %s: %v", engine, part, err)
			}
		}
		w.VocabSize = 1
		require.NoError(t, l.roster.Put(*w))
		card, _ = CardOf(l.roster, "m")
		assert.Contains(t, fmt.Sprint(card.CheckIDs(scanned(t, openai.Completions, `{"model":"m","prompt":[1]}`), nil)), "ends at 0", engine)
	}
}
