package openai

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What an engine refuses though it means nothing goes, and what it does not know and would mean something is refused.
func TestFit(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"x"}]`
	for _, c := range []struct {
		engine      string
		endpoint    Endpoint
		more, want  string // after the prompt; want is the field that is refused where it begins with !
		description string
	}{
		{"vllm", Chat, `,"tools":[ ],"tool_choice":"auto"`, ``, "no tools"},
		{"sglang", Chat, `,"functions":[],"function_call":"none"`, ``, "no functions"},
		{"vllm", Chat, `,"tools":[],"tool_choice":"required"`, `,"tool_choice":"required"`,
			"a choice that no tool can meet is the engine's to refuse"},
		{"vllm", Chat, `,"tools":null,"tool_choice":"auto"`, `,"tools":null,"tool_choice":"auto"`, "null is no list"},
		{"vllm", Chat, `,"tools":[{"type":"function"}],"guided_regex":"a","whatever":1`,
			`,"tools":[{"type":"function"}],"guided_regex":"a","whatever":1`, "all else"},
		{"vllm", Completions, `,"tools":[]`, `,"tools":[]`, "tools mean nothing in a completion"},
		// Answered 500 by SGLang 0.5.23 (tokenize, return_dict, tools, messages); vLLM 0.32 answers 200 or 400.
		{"sglang", Chat, `,"chat_template_kwargs":{"tokenize":false}`, `!chat_template_kwargs.tokenize`, "an argument that the engine sets"},
		{"sglang", Chat, `,"chat_template_kwargs":{"a":1,"return_\u0064ict":null}`, `!chat_template_kwargs.return_dict`, "the same, escaped"},
		{"sglang", Chat, `,"chat_template_kwargs":{"tools":5}`, `!chat_template_kwargs.tools`, "tools of the template"},
		{"sglang", Chat, `,"chat_template_kwargs":{"messages":[]}`, `!chat_template_kwargs.messages`, "messages of the template"},
		{"sglang", Chat, `,"chat_template_kwargs":{"add_generation_prompt":false,"x":{"tools":1}}`,
			`,"chat_template_kwargs":{"add_generation_prompt":false,"x":{"tools":1}}`, "arguments of the template's own"},
		{"sglang", Chat, `,"chat_template_kwargs":null`, `,"chat_template_kwargs":null`, "no arguments"},
		{"sglang", Completions, `,"chat_template_kwargs":{"tools":5}`, `,"chat_template_kwargs":{"tools":5}`, "a completion has no template"},
		{"vllm", Chat, `,"chat_template_kwargs":{"tokenize":false}`, `,"chat_template_kwargs":{"tokenize":false}`, "vLLM leaves it out"},
		{"trtllm", Chat, `,"store":true,"metadata":{"a":"b"},"user":"u","service_tier":"auto","prompt_cache_key":"k","whatever":1`,
			`,"user":"u"`, "hints"},
		{"trtllm", Chat, `,"tools":[],"temperature":1,"tool_choice":"none"`, `,"temperature":1`, "no tools"},
		{"trtllm", Chat, `,"max_tokens":5,"max_completion_tokens":7`, `,"max_completion_tokens":7`, "the newer limit"},
		{"trtllm", Chat, `,"max_tokens":5,"max_completion_tokens":null`, `,"max_tokens":5`, "the only limit"},
		{"trtllm", Completions, `,"max_tokens":5,"max_completion_tokens":7`, `,"max_tokens":5`, "a completion's limit"},
		{"trtllm", Chat, `,"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}`,
			`,"stream":true,"stream_options":{"include_usage":true}`, "options of a stream"},
		{"trtllm", Chat, `,"structured_outputs":null,"include_reasoning":true,"return_token_ids":false,"bad_words":[ ],"modalities":["text"]`, ``, "what says nothing"},
		{"trtllm", Chat, `,"guided_json":{"type":"object"}`, `!guided_json`, "a grammar"},
		{"trtllm", Chat, `,"structured_outputs":{"choice":["a"]}`, `!structured_outputs`, "a grammar"},
		{"trtllm", Chat, `,"allowed_token_ids":[1]`, `!allowed_token_ids`, "sampling"},
		{"trtllm", Chat, `,"include_reasoning":false`, `!include_reasoning`, "what is shown"},
		{"trtllm", Chat, `,"vllm_xargs":{"a":1}`, `!vllm_xargs`, "another engine's arguments"},
		{"trtllm", Chat, `,"cache_salt":"s"`, `,"cache_salt":"s"`, "a salt"},
		{"trtllm", Completions, `,"cache_salt":"s"`, `!cache_salt`, "a salt that completions lack"},
		{"trtllm", Completions, `,"nvext":{"cache_salt":"s"}`, `!nvext.cache_salt`, "the same in nvext"},
		{"trtllm", Completions, `,"tools":[],"chat_template":"x","n":1`, `,"n":1`, "a chat's fields"},
	} {
		prompt := messages
		if c.endpoint == Completions {
			prompt = `"prompt":"x"`
		}
		r := scanned(t, c.endpoint, `{"model":"m",`+prompt+c.more+`}`)
		e := r.Edit()
		err := r.Fit(e, c.engine)
		var refused *Error
		if param, refuses := strings.CutPrefix(c.want, "!"); refuses {
			assert.True(t, errors.As(err, &refused) && refused.Status == 400 && refused.Param == param,
				"%s, %s: %v", c.engine, c.description, err)
			continue
		}
		assert.NoError(t, err, "%s, %s", c.engine, c.description)
		assert.Equal(t, `{"model":"m",`+prompt+c.want+`}`, string(e.Bytes()), "%s, %s", c.engine, c.description)
	}
}

// Equal media have equal names, whatever stands around them; another salt's have others, and what is fetched from
// elsewhere has none.
func TestNameMedia(t *testing.T) {
	named := regexp.MustCompile(`,"uuid":"([0-9a-f]{64})"}`)
	names := func(content, more string) (out []string, body string) {
		r := scanned(t, Chat, `{"model":"m","messages":[{"role":"user","content":[`+content+`]}]`+more+`}`)
		e := r.Edit()
		r.NameMedia(e)
		again := r.Edit()
		r.NameMedia(again)
		assert.Equal(t, string(again.Bytes()), string(e.Bytes()),
			"two legs have other names: %s and %s", e.Bytes(), again.Bytes())
		body = string(e.Bytes())
		assert.Equal(t, string(r.Raw), named.ReplaceAllString(body, "}"), "other bytes changed: %s", body)
		for _, m := range named.FindAllStringSubmatch(body, -1) {
			out = append(out, m[1])
		}
		return out, body
	}
	const image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}`
	one, _ := names(image, "")
	same, _ := names(`{"type":"text","text":"x"}, { "image_url" : {"detail":"low","url":"data:image/png;base64,AAAA"} , "type":"image_url" }`, `,"seed":1`)
	short, _ := names(`{"type":"image_url","image_url":"data:image/png;base64,AAAA"}`, "")
	assert.True(t, len(one) == 1 && len(same) == 1 && len(short) == 1 && one[0] == same[0] && one[0] == short[0],
		"one image is called %v, %v and %v", one, same, short)
	for what, other := range map[string][2]string{
		"another image": {strings.Replace(image, "AAAA", "AAAB", 1), ""}, "another salt": {image, `,"cache_salt":"s"`},
		"another salt, in nvext": {image, `,"nvext":{"cache_salt":"t"}`},
		"sound":                  {`{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}`, ""},
	} {
		got, _ := names(other[0], other[1])
		assert.True(t, len(got) == 1 && got[0] != one[0], "%s is called %v, the image %v", what, got, one)
	}
	for _, content := range []string{
		`{"type":"text","text":"data:,x"}`, `{"type":"image_url","image_url":{"url":"https://h/i.png"}}`,
		`{"type":"image_url","image_url":{"url":7}}`,
		`{"type":"image_url","image_url":null}`, `{"type":"refusal","refusal":"data:,"}`,
	} {
		got, body := names(content, "")
		assert.Empty(t, got, "%s is named: %s", content, body)
	}
	two, body := names(image+`,`+strings.Replace(image, "AAAA", strings.Repeat("B", 3*flatBytes), 1), `,"n":1`)
	r := scanned(t, Chat, strings.ReplaceAll(body, `,"uuid":"`, `,"id":"`))
	e := r.Edit()
	r.NameMedia(e)
	e.Delete("n")
	var joined []byte
	segments, _ := e.AppendSegments(nil, nil)
	for _, s := range segments {
		joined = append(joined, s...)
	}
	assert.True(t, len(two) == 2 && string(joined) == string(e.Bytes()) && len(named.FindAll(joined, -1)) == 2,
		"%d names; the segments are %d bytes, the whole %d", len(two), len(joined), len(e.Bytes()))
}
