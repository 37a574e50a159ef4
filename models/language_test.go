package models

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

const simTokenizer = "../internal/tokens/sim_tokenizer.json"

// folder makes a model's folder of these files, with the simulated model's tokenizer.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(simTokenizer)
	require.NoError(t, err)
	write(t, filepath.Join(dir, "tokenizer.json"), string(data))
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}
	return dir
}

func write(t testing.TB, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// loaded is the language of such a folder.
func loaded(t testing.TB, cacheBytes int64, files map[string]string) *Language {
	t.Helper()
	l, err := Load(folder(t, files), cacheBytes)
	require.NoError(t, err)
	return l
}

// language has one chat template, whose date is 7 March 2026.
func language(t testing.TB, template string) *Language {
	t.Helper()
	quoted, _ := json.Marshal(template)
	l := loaded(t, 1<<20, map[string]string{
		"tokenizer_config.json": `{"bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null,"chat_template":` + string(quoted) + `}`,
	})
	l.now = func() time.Time { return time.Date(2026, 3, 7, 9, 5, 2, 0, time.UTC) }
	return l
}

// renders compares what a language makes of a chat.
func (l *Language) renders(t *testing.T, engine, body, want string) {
	t.Helper()
	got, err := l.Render(nil, scanned(t, openai.Chat, body), engine)
	assert.NoError(t, err)
	assert.Equal(t, want, string(got), "%s of %s", engine, body)
}

// What each engine hands its templates of a request: the fields that it knows, in the order of its types, tool
// arguments read, parts joined.
func TestEnginesHandOver(t *testing.T) {
	const all = `{{ messages | tojson }}|{{ tools | tojson }}|{{ documents is defined }}|{{ add_generation_prompt }}|{{ reasoning_effort }}|{{ enable_thinking }}|{{ bos_token }}{{ eos_token }}{{ pad_token }}|{{ strftime_now('%d %b %Y') }}`
	const turns = `[{"content":null,"role":"system","x":1},{"role":"user","name":"Ann","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},` +
		`{"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2.0]}"}}]},` +
		`{"role":"tool","tool_call_id":"1","content":"r"}]`
	const tools = `[{"function":{"strict":true,"name":"f","parameters":{"z":1,"a":2}},"type":"function"}]`
	body := func(more string) string { return `{"model":"m","messages":` + turns + `,"tools":` + tools + more + `}` }
	const vllmTools = `[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}, "strict": true}}]`
	const vllmTurns = `[{"role": "system", "content": ""}, {"role": "user", "content": "a\nb", "name": "Ann"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2.0]}}}], "reasoning": "hm", "reasoning_content": "hm"}, {"role": "tool", "content": "r", "tool_call_id": "1"}]`
	const sglangTools = `[{"type": "function", "function": {"description": null, "name": "f", "parameters": {"z": 1, "a": 2}, "strict": true}}]`
	const sglangTurns = `[{"role": "system", "content": ""}, {"role": "user", "content": "a b", "name": "Ann"}, {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": [2.0]}}}]}, {"role": "tool", "content": "r", "tool_call_id": "1"}]`
	const end = `|<s></s>|07 Mar 2026`
	l := language(t, all)
	for _, tt := range []struct{ engine, body, want string }{
		{"vllm", body(``), vllmTurns + `|` + vllmTools + `|True|True||` + end},
		{"trtllm", body(`,"add_generation_prompt":false`), vllmTurns + `|` + vllmTools + `|True|False||` + end},
		{"vllm", body(`,"tool_choice":"none","reasoning_effort":"low"`), vllmTurns + `|` + vllmTools + `|True|True|low|True` + end},
		{"vllm", body(`,"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high","enable_thinking":false}`),
			vllmTurns + `|` + vllmTools + `|True|True|low|False` + end},
		{"sglang", body(``), sglangTurns + `|` + sglangTools + `|False|True||` + end},
		{"sglang", body(`,"tool_choice":"none","reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high"}`),
			sglangTurns + `|null|False|True|high|` + end},
		{"sglang", `{"model":"m","messages":[{"role":"assistant","content":"x"}]}`, `[{"role": "user", "content": "x"}]|null|False|True||` + end},
		{"vllm", `{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[]}],"tools":[]}`,
			`[{"role": "assistant", "content": "x"}]|null|True|True||` + end},
		{"vllm", `{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{broken"}}]}]}`,
			`[{"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}]}]|null|True|True||` + end},
		// vLLM 0.32.0 answers these with such prompts: an empty text is no part of a joined one.
		{"vllm", `{"model":"m","add_generation_prompt":"off","messages":[{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}]}`,
			`[{"role": "user", "content": "a\nb"}]|null|True|False||` + end},
	} {
		l.renders(t, tt.engine, tt.body, tt.want)
	}
}

// A template that loops over contents gets lists of parts.
func TestContentsInParts(t *testing.T) {
	l := language(t, `{% for message in messages %}{{ message.content | tojson }}{% for part in message['content'] %}{% endfor %}{% endfor %}`)
	const body = `{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null}]}`
	for engine, want := range map[string]string{
		"vllm":   `[{"type": "text", "text": "s"}][{"type": "text", "text": "a"}][]`,
		"sglang": `"s"[{"type": "text", "text": "a"}]""`,
	} {
		l.renders(t, engine, body, want)
	}
}

// What an engine may render in another way is left to it.
func TestNotRendered(t *testing.T) {
	l := language(t, `{% for message in messages %}{% if message.role == 'bad' %}{{ raise_exception('no') }}{% endif %}{{ message.content }}{% endfor %}`)
	for name, body := range map[string]string{
		"media":               `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://h/i"}}]}]}`,
		"a part that is null": `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":null}]}]}`,
		"a string for a part": `{"model":"m","messages":[{"role":"user","content":["a",{"type":"text","text":"b"}]}]}`,
		"template":            `{"model":"m","chat_template":"x","messages":[{"role":"user","content":"a"}]}`,
		"refused":             `{"model":"m","messages":[{"role":"bad","content":"a"}]}`,
		"both ends":           `{"model":"m","add_generation_prompt":true,"continue_final_message":true,"messages":[{"role":"user","content":"a"}]}`,
		"arguments, messages": `{"model":"m","chat_template_kwargs":{"messages":[]},"messages":[{"role":"user","content":"a"}]}`,
		"a tool's shape":      `{"model":"m","tools":[{"type":"custom"}],"messages":[{"role":"user","content":"a"}]}`,
	} {
		ids, err := l.Encode(nil, scanned(t, openai.Chat, body), "vllm")
		assert.ErrorIs(t, err, ErrUnrendered, name)
		assert.Nil(t, ids, name)
		card := Card{BlockSize: 16, Engine: "vllm"}
		p, source, err := card.Tokens(scanned(t, openai.Chat, body), l)
		assert.True(t, p.IDs == nil && source == FromText && err == nil, "%s: %v from %s, %v", name, p.IDs, source, err)
	}
}

// The last message is continued where its text ends, whether the template trims it or not.
func TestContinuedMessage(t *testing.T) {
	const body = `{"model":"m","add_generation_prompt":false,"continue_final_message":true,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b c "}]}`
	for template, want := range map[string]string{
		`{% for m in messages %}<{{ m.content }}>{% endfor %}`:                                               `<a><b c `,
		`{% for m in messages %}<{{ m.content | trim }}>{% endfor %}`:                                        `<a><b c`,
		`{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}never{% endif %}`: `<a><b c `,
	} {
		language(t, template).renders(t, "vllm", body, want)
	}
}

// A completion's text is encoded with what stands around prompts, unless the client asks for it bare; a chat's is what
// the template wrote.
func TestSpecialTokensAround(t *testing.T) {
	l := language(t, `{{ bos_token }}x`)
	t5 := l.Tokenizer()
	for body, want := range map[string][]uint32{
		`{"model":"m","prompt":"some words"}`:                                 t5.EncodePrompt(nil, "some words"),
		`{"model":"m","prompt":"some words","add_special_tokens":false}`:      t5.Encode(nil, "some words"),
		`{"model":"m","prompt":"<|im_end|> words","add_special_tokens":null}`: t5.EncodePrompt(nil, "<|im_end|> words"),
	} {
		got, err := l.Encode(nil, scanned(t, openai.Completions, body), "vllm")
		assert.NoError(t, err)
		assert.Equal(t, want, got, body)
	}
	got, err := l.Encode(nil, scanned(t, openai.Chat, contains), "vllm")
	assert.NoError(t, err)
	assert.Equal(t, t5.Encode(nil, "<s>x"), got)
}

// A template that refuses a later system message, as Mistral's and Gemma's do, or leaves it out, takes one that leads.
func TestOneSystem(t *testing.T) {
	const strict = `{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first') }}` +
		`{% endif %}{{ m.content }}{% endfor %}`
	for template, want := range map[string]bool{
		strict: true,
		`{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}`: true,
		`{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}`:         false,
	} {
		assert.Equal(t, want, language(t, template).OneSystem(), template)
	}
	assert.False(t, Sim(1<<20).OneSystem())
}

// Templates are found where transformers finds them, and one for tools is used for requests with tools.
func TestTemplatesOfAFolder(t *testing.T) {
	const withTools = `{"model":"m","tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":"a"}]}`
	for _, tt := range map[string]struct {
		files       map[string]string
		plain, tool string
	}{
		"config":    {map[string]string{"tokenizer_config.json": `{"chat_template":"one"}`}, "one", "one"},
		"named":     {map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"default","template":"one"},{"name":"tool_use","template":"two"},{"name":"rag","template":"three"}]}`}, "one", "two"},
		"jinja":     {map[string]string{"tokenizer_config.json": `{"chat_template":"one"}`, "chat_template.jinja": "own\n"}, "own", "own"},
		"processor": {map[string]string{"chat_template.json": `{"chat_template":"p"}`}, "p", "p"},
		"more":      {map[string]string{"chat_template.jinja": "own", "additional_chat_templates/tool_use.jinja": "tools"}, "own", "tools"},
	} {
		l := loaded(t, 1<<20, tt.files)
		l.renders(t, "vllm", contains, tt.plain)
		l.renders(t, "vllm", withTools, tt.tool)
	}
	l, err := Load(filepath.Join(folder(t, nil), "tokenizer.json"), 1<<20)
	require.NoError(t, err)
	assert.Empty(t, l.Templates(), "a tokenizer.json alone")
}

// What cannot be read is refused with the file's name.
func TestBrokenFolders(t *testing.T) {
	for file, content := range map[string]string{
		"tokenizer.json": "{", "tokenizer_config.json": "[]", "chat_template.jinja": "{% if %}", "chat_template.json": "nothing",
		"special_tokens_map.json": "7",
	} {
		_, err := Load(folder(t, map[string]string{file: content}), 1<<20)
		if file == "special_tokens_map.json" {
			file = "" // the folder's
		}
		assert.ErrorContains(t, err, file)
	}
	_, err := Load(t.TempDir(), 1<<20)
	assert.Error(t, err, "an empty folder")
}

// unzipped reads a file of the shared vectors, or skips the test.
func unzipped(t testing.TB, name string) []byte {
	t.Helper()
	file, err := os.Open(filepath.Join("../../shared/vectors", name))
	if err != nil {
		t.Skipf("reads ../shared, which is absent: %v", err)
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	require.NoError(t, err)
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return b
}

// qwen is the language of Qwen 2.5.
func qwen(t testing.TB) *Language {
	t.Helper()
	return loaded(t, 64<<20, map[string]string{
		"tokenizer.json":        string(unzipped(t, "tokenizer/qwen2.5/tokenizer.json.gz")),
		"tokenizer_config.json": string(unzipped(t, "tokenizer/qwen2.5/tokenizer_config.json.gz")),
	})
}

// The shared conversations as requests: the text is that of Python's jinja2, and the tokens are the text's.
func TestQwenConversations(t *testing.T) {
	l, n := qwen(t), 0
	for line := range bytes.Lines(unzipped(t, "chat/qwen2.5.jsonl.gz")) {
		var c struct {
			Request  json.RawMessage
			Rendered string
		}
		require.NoError(t, json.Unmarshal(line, &c))
		n++
		body := `{"model":"m",` + string(c.Request[1:])
		l.renders(t, "vllm", body, c.Rendered)
		req := scanned(t, openai.Chat, body)
		p, source, err := (&Card{BlockSize: 16, Engine: "vllm"}).Tokens(req, l)
		assert.True(t, err == nil && source == FromOwn && slices.Equal(p.IDs, l.Tokenizer().Tokenizer().Encode(nil, c.Rendered)),
			"%s: %d tokens from %s, %v", c.Request, len(p.IDs), source, err)
		exact, ok := (&Card{Engine: "vllm"}).Exact(scanned(t, openai.Tokenize, body), l)
		assert.True(t, ok && slices.Equal(exact, p.IDs), "%s: /tokenize has %d other tokens", c.Request, len(exact))
	}
	assert.Equal(t, 12, n, "conversations")
}

func TestStrftime(t *testing.T) {
	at := time.Date(2026, 3, 7, 9, 5, 2, 123456000, time.UTC)
	for format, want := range map[string]string{
		"%Y-%m-%d": "2026-03-07", "%d %b %Y": "07 Mar 2026", "%A, %B %-d": "Saturday, March 7", "%H:%M:%S.%f": "09:05:02.123456",
		"%y%%%j %w %I%p %e": "26%066 6 09AM  7", "%Q": "%Q", "%Z%z|": "|", "%-H %F %T": "9 2026-03-07 09:05:02", "%": "%",
	} {
		assert.Equal(t, want, strftime(at, format), format)
	}
}
