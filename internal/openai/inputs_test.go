package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scanInputs scans a body of one of the endpoints that generate nothing.
func scanInputs(ep Endpoint, body string) (*Request, error) { return Limits{}.Scan(ep, []byte(body)) }

// TestInputsAreCounted: load is a request's sequences and about their tokens, whatever the form.
func TestInputsAreCounted(t *testing.T) {
	long := `"` + strings.Repeat("word ", 80) + `"` // 400 bytes
	for _, c := range []struct {
		ep             Endpoint
		body           string
		inputs, tokens int
	}{
		{Embeddings, `{"input":` + long + `}`, 1, 101},
		{Embeddings, `{"input":[` + long + `,` + long + `,"x"]}`, 3, 203},
		{Embeddings, `{"input":[1,2,3]}`, 1, 3},
		{Embeddings, `{"input":[0]}`, 1, 1},
		{Embeddings, `{"input":[[1,2,3],[4]]}`, 2, 4},
		{Embeddings, `{"input":""}`, 1, 1},
		{Embeddings, `{"input":[{"text":` + long + `},{"image":"https://x/y.png"}]}`, 2, 100 + tokensOfMedia},
		{Embeddings, `{"messages":[{"role":"user","content":[{"type":"text","text":` + long + `}]},` +
			`{"role":"user","content":"x"}]}`, 1, 103},
		{Pooling, `{"messages":[[{"role":"user","content":"x"}],[{"role":"user","content":"x"}]]}`, 2, 2},
		{Pooling, `{"data":{"any":["thing"]}}`, 1, 1},
		{Classify, `{"input":["a","b"]}`, 2, 2},
		{Rerank, `{"query":` + long + `,"documents":["a","b","c"]}`, 3, 3*101 + 3}, // each with the query
		{Rerank, `{"query":"q","documents":[` + long + `,{"text":` + long + `}]}`, 2, 101 + 100 + 2},
		{Score, `{"text_1":"a","text_2":["b","c"]}`, 2, 4},
		{Score, `{"queries":["a","b"],"documents":["c","d"]}`, 2, 4},
		{Score, `{"query":[1,2],"items":[[3],[4]],"label_token_ids":[5]}`, 2, 6},
		{Tokenize, `{"prompt":` + long + `}`, 0, 0},
		{Detokenize, `{"tokens":[1,2]}`, 0, 0},
	} {
		r, err := scanInputs(c.ep, c.body)
		require.NoError(t, err, c.body)
		assert.Equal(t, [2]int{c.inputs, c.tokens}, [2]int{r.Inputs, r.InputTokens}, c.body)
		assert.False(t, r.Stream)
	}
}

// TestInputsThatEnginesMustNotGet: ids outside of the vocabulary end SGLang, and so does a file of its machine end up in
// an answer.
func TestInputsThatEnginesMustNotGet(t *testing.T) {
	for body, param := range map[string]string{`{"input":[[1],[70000,2]]}`: "input", `{"input":[70000]}`: "input"} {
		r, err := scanInputs(Embeddings, body)
		require.NoError(t, err)
		assert.Equal(t, param, r.Unchecked())
		assert.Nil(t, r.OutsideVocabulary(70001))
		if e := r.OutsideVocabulary(70000); assert.NotNil(t, e) {
			assert.Equal(t, param, e.Param)
		}
	}
	for _, body := range []string{
		`{"input":[{"image":"/etc/passwd"}]}`,
		`{"input":[{"text":"x","video":"file:///x"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"../x"}}]}]}`,
	} {
		r, err := scanInputs(Embeddings, body)
		require.NoError(t, err)
		assert.True(t, r.NamesFiles(), body)
	}
	r, err := scanInputs(Embeddings, `{"input":[{"image":"data:image/png;base64,AAAA"},{"image":"https://x"}]}`)
	require.NoError(t, err)
	assert.False(t, r.NamesFiles())
}

// TestDocumentsAreUnwrapped: every engine takes documents as texts.
func TestDocumentsAreUnwrapped(t *testing.T) {
	for in, want := range map[string]string{
		`["a", {"text":"b\"é","title":"x"} ,["c"],{"content":[{"type":"text","text":"d"}]}]`: `["a", "b\"é" ,["c"],{"content":[{"type":"text","text":"d"}]}]`,
		`["a","b"]`:          `["a","b"]`,
		`"a"`:                `"a"`,
		`[{"title":"only"}]`: `[{"title":"only"}]`,
	} {
		r, err := scanInputs(Rerank, `{"query":"q","documents":`+in+`,"x":1}`)
		require.NoError(t, err)
		e := r.Edit()
		require.NoError(t, r.Fit(e, "sglang"))
		assert.Equal(t, `{"query":"q","documents":`+want+`,"x":1}`, string(e.Bytes()))
	}
}

// TestRerankAnswer: SGLang 0.5.23 answers with a list (RerankResponse in entrypoints/openai/protocol.py), vLLM as Jina does.
func TestRerankAnswer(t *testing.T) {
	const vllm = `{"id":"rerank-1","model":"m","usage":{"prompt_tokens":3,"total_tokens":3},"results":[{"index":0,"relevance_score":0.5}]}`
	for in, want := range map[string]string{
		vllm:        vllm,
		`[{"sc`:     `[{"sc`,
		`[]`:        `{"id":"rerank-r","model":"m","usage":{"prompt_tokens":0,"total_tokens":0},"results":[]}`,
		`{"x":[1]}`: `{"x":[1]}`,
		` [{"score":0.91000000000000003,"document":"b","index":1,"meta_info":{"id":"x","prompt_tokens":7}},{"score":-2e-3,"index":0}]`: `{"id":"rerank-r","model":"m",` +
			`"usage":{"prompt_tokens":7,"total_tokens":7},"results":[{"index":1,"document":{"text":"b"},"relevance_score":0.91000000000000003},{"index":0,"relevance_score":-2e-3}]}`,
	} {
		assert.Equal(t, want, string(RerankAnswer([]byte(in), "r", "m")))
	}
}

// FuzzInputs: no body makes the scan fail otherwise than with a 400 or 413, and what it accepts is JSON whose edit is, too.
func FuzzInputs(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","input":["a",{"text":"b","image":"c"},[1,2]],"dimensions":3}`, `{"query":"a","documents":[{"text":"b"}]}`,
		`{"messages":[[{"role":"user","content":[{"type":"text","text":"x"}]}]]}`, `{"text_1":"a","text_2":["b"]}`, `{"tokens":[1]}`,
	} {
		for ep := range Endpoints() {
			f.Add(uint8(ep), []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, ep uint8, body []byte) {
		r, err := Limits{}.Scan(Endpoint(ep%uint8(TokenizerInfo)), body)
		if err != nil {
			e := (*Error)(nil)
			if !errors.As(err, &e) || e.Status != 400 && e.Status != 413 {
				t.Fatalf("%v", err)
			}
			return
		}
		if r.Endpoint.Generates() {
			return
		}
		if r.Inputs < 0 || r.Inputs > maxInputs || r.Endpoint.Computes() != (r.Inputs > 0) {
			t.Errorf("%d inputs of %d tokens", r.Inputs, r.InputTokens)
		}
		e := r.Edit()
		if err := r.Fit(e, "sglang"); err != nil {
			t.Errorf("%v", err)
		}
		if out := e.Bytes(); !json.Valid(out) {
			t.Errorf("%s becomes %s", body, out)
		}
	})
}

// BenchmarkScanInputs reads a batch of 128 KB.
func BenchmarkScanInputs(b *testing.B) {
	text := `"` + strings.Repeat("The quick brown fox. ", 60) + `"`
	for name, body := range map[string]string{
		"texts": `{"model":"m","input":[` + strings.Repeat(text+",", 100) + text + `]}`,
		"ids":   `{"model":"m","input":[` + strings.Repeat("[12345"+strings.Repeat(",12345", 200)+"],", 100) + `[1]]}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := scanInputs(Embeddings, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
