package tokens

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	imStartID, imEndID = 4094, 4095

	templateOne = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|im_start|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],` +
		`"pair":[],"special_tokens":{"<|im_start|>":{"id":"<|im_start|>","ids":[4094],"tokens":["<|im_start|>"]}}}`
)

// TestAffixes: what stands around a prompt, by post-processor and by config.
func TestAffixes(t *testing.T) {
	both := strings.Replace(templateOne, `}}],"pair"`, `}},{"SpecialToken":{"id":"<|im_start|>"}}],"pair"`, 1)
	for _, c := range []struct {
		name, processor, config string
		prefix, suffix          []uint32
	}{
		{"none", `null`, ``, nil, nil},
		{"byte level", `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true}`, ``, nil, nil},
		{"template", templateOne, ``, []uint32{imStartID}, nil},
		{"template on both sides", both, ``, []uint32{imStartID}, []uint32{imStartID}},
		{"sequence", `{"type":"Sequence","processors":[{"type":"ByteLevel"},` + templateOne + `]}`, `{}`, []uint32{imStartID}, nil},
		{"a class that goes by the post-processor", templateOne, `{"tokenizer_class":"PreTrainedTokenizerFast","add_bos_token":false}`,
			[]uint32{imStartID}, nil},
		{"Llama by default", `null`, `{"tokenizer_class":"LlamaTokenizerFast","bos_token":"<|im_end|>"}`, []uint32{imEndID}, nil},
		{"Llama with a token object", `{"type":"ByteLevel"}`,
			`{"tokenizer_class":"LlamaTokenizer","add_bos_token":true,"bos_token":{"content":"<|im_end|>","lstrip":false}}`, []uint32{imEndID}, nil},
		{"Llama without", templateOne, `{"tokenizer_class":"LlamaTokenizerFast","add_bos_token":false,"bos_token":null}`, nil, nil},
		{"Llama with an end", `null`, `{"tokenizer_class":"LlamaTokenizerFast","add_bos_token":false,"add_eos_token":true,"eos_token":"<|im_end|>"}`, nil, []uint32{imEndID}},
	} {
		tok := family{c.name, edited(t, `"post_processor":null`, `"post_processor":`+c.processor), nil, c.config}.load(t)
		assert.True(t, slices.Equal(tok.Prefix(), c.prefix) && slices.Equal(tok.Suffix(), c.suffix), "%s: %v and %v", c.name,
			tok.Prefix(), tok.Suffix())
		const text = "It is <|im_end|> so."
		assert.Equal(t, slices.Concat(c.prefix, Sim().Encode(nil, text), c.suffix), NewCache(tok, 0).EncodePrompt(nil, text), c.name)
	}
}

// TestConfigChangesTheFile: added_tokens_decoder adds tokens, and changes those of tokenizer.json; Mistral's files of a
// time have another model's pattern, as their config shows.
func TestConfigChangesTheFile(t *testing.T) {
	tok, err := LoadWith(simJSON, []byte(`{"added_tokens_decoder":{`+
		`"4096":{"content":"<new>","special":true},"4095":{"content":"<|im_end|>","rstrip":true,"special":true}}}`))
	require.NoError(t, err)
	assert.Equal(t, []uint32{4096, imEndID}, tok.Encode(nil, "<new><|im_end|> \n"))
	tok, err = LoadWith(simJSON, []byte(`{"fix_mistral_regex":true}`))
	require.NoError(t, err)
	assert.Equal(t, tekken, tok.pattern)
}

func TestAffixesRefused(t *testing.T) {
	for _, c := range []struct{ name, processor, config string }{
		{`post_processor.type "RobertaProcessing"`, `{"type":"RobertaProcessing"}`, `{}`},
		{`post_processor.type "BertProcessing"`, `{"type":"Sequence","processors":[{"type":"BertProcessing"}]}`, `{}`},
		{"post_processor.single[0] names", strings.Replace(templateOne, `"special_tokens":{"<`, `"special_tokens":{"x`, 1), `{}`},
		{"post_processor.single[1] is neither", strings.Replace(templateOne, `"Sequence"`, `"Other"`, 1), `{}`},
		{"post_processor.single has no text", `{"type":"TemplateProcessing","single":[]}`, `{}`},
		{"post_processor.single[1] is neither", `{"type":"TemplateProcessing","single":[{"Sequence":{}},{"Sequence":{}}]}`, `{}`},
		{`bos_token "<s>"`, `null`, `{"tokenizer_class":"LlamaTokenizerFast"}`},
		{`key "x"`, `null`, `{"added_tokens_decoder":{"x":{"content":"y"}}}`},
	} {
		_, err := LoadWith(edited(t, `"post_processor":null`, `"post_processor":`+c.processor), []byte(c.config))
		assert.True(t, errors.Is(err, ErrUnsupported) && strings.Contains(err.Error(), c.name), "%s: %v", c.name, err)
	}
	for _, config := range []string{``, `[]`, `{"bos_token":7}`} {
		_, err := LoadWith(simJSON, []byte(config))
		assert.Error(t, err, config)
	}
}
