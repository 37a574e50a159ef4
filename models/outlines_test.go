package models

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/jinja"
	"github.com/tandem-pd/tandem/internal/openai"
)

// TestOutlinesWriteWhatTemplatesDo renders chats of all shapes by what was learnt of chats like them, and compares each
// with a language that has learnt nothing.
func TestOutlinesWriteWhatTemplatesDo(t *testing.T) {
	l := loaded(t, 64<<20, map[string]string{"tokenizer_config.json": string(unzipped(t, "tokenizer/qwen2.5/tokenizer_config.json.gz"))})
	trimming, err := jinja.Parse(`{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}` +
		`{% else %}<{{ m['role'] }}>{{ m['content'] | trim }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`)
	require.NoError(t, err)
	another := l.with(0)
	another.templates = map[string]*template{"default": {Template: trimming}}
	parts := l.with(0)
	parts.templates = map[string]*template{"default": {Template: l.templates["default"].Template, parts: true, sglangParts: true}}
	texts := []string{"Hi.", "a \"b\"\\\n", " x ", "", "<think>no</think>yes", "<|im_end|>", "é漢😀", "\u2003", "{{ a }}"}
	for name, l := range map[string]*Language{"qwen": l, "trims": another, "parts": parts} {
		byOutline := 0
		for _, engine := range []string{"vllm", "sglang"} {
			for k := 0; k < 400; k += 7 {
				var messages []map[string]any
				for i, at := 0, k; i == 0 || at > 0 && i < maxOutlined+1; i++ {
					messages = append(messages, map[string]any{"role": []string{"system", "user", "assistant"}[at%3],
						"content": texts[(k+3*i)%len(texts)]})
					at /= 3
				}
				raw, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
				require.NoError(t, err)
				req := scanned(t, openai.Chat, string(raw))
				fresh := l.with(0)
				want, wantErr := fresh.Render(nil, req, engine)
				for range 2 {
					got, err := l.Render([]byte("before "), req, engine)
					if strings.TrimPrefix(string(got), "before ") != string(want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
						t.Fatalf("%s, %s: %s\ngot  %q, %v\nwant %q, %v", name, engine, raw, got, err, want, wantErr)
					}
				}
				if shape, ok := shapeOf(req, engine); ok {
					if _, ok := l.outlines.append(nil, shape, req); ok {
						byOutline++
					}
				}
			}
		}
		assert.True(t, byOutline != 0 && len(l.outlines.all) <= maxOutlines,
			"%s: %d chats are written by %d outlines", name, byOutline, len(l.outlines.all))
	}
}

// What is more than roles and texts has no outline.
func TestShapes(t *testing.T) {
	for body, want := range map[string]bool{
		`"messages":[{"role":"user","content":"a"}]`:                                                                      true,
		`"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}],"temperature":1`:                      true,
		`"messages":[{"role":"user","content":"a","name":"n"}]`:                                                           false,
		`"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]`:                                             false,
		`"messages":[{"role":"user"}]`:                                                                                    false,
		`"messages":[{"role":"assistant","content":"a","tool_calls":[]}]`:                                                 false,
		`"messages":[{"role":"tool","content":"a"}]`:                                                                      false,
		`"messages":[{"role":"user","content":"a"}],"tools":null`:                                                         false,
		`"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{}`:                                            false,
		`"messages":[{"role":"user","content":"a"}],"continue_final_message":true`:                                        false,
		`"messages":[` + strings.Repeat(`{"role":"user","content":"a"},`, maxOutlined) + `{"role":"user","content":"a"}]`: false,
	} {
		_, ok := shapeOf(scanned(t, openai.Chat, `{"model":"m",`+body+`}`), "vllm")
		assert.Equal(t, want, ok, body)
	}
}
