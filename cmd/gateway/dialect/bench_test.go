package dialect

import (
	"fmt"
	"strings"
	"testing"
)

// turn is the body of an agent's request: a system prompt, tools and a history with thoughts, calls and results.
func turn() []byte {
	text := func(n int) string {
		return strings.Repeat("Use absolute paths, and read \\\"the file\\\" first.\\n", n)
	}
	var b strings.Builder
	b.WriteString(`{"model":"claude-x","max_tokens":32000,"stream":true,"temperature":1,"thinking":{"type":"adaptive"},` +
		`"metadata":{"user_id":"user_1_account__session_2"},"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=2.1"},` +
		`{"type":"text","text":"` + text(20) + `","cache_control":{"type":"ephemeral"}}],"tools":[`)
	for i := range 4 {
		fmt.Fprintf(&b, `{"name":"tool%d","description":"%s","input_schema":{"type":"object","properties":{"path":`+
			`{"type":"string","description":"The path"},"limit":{"type":"number"},"mode":{"type":"string","enum":["a","b"]}},`+
			`"required":["path"],"additionalProperties":false}},`, i, text(4))
	}
	s := strings.TrimSuffix(b.String(), ",") +
		`],"messages":[{"role":"user","content":[{"type":"text","text":"` + text(2) + `"},{"type":"text","text":"Go."}]}`
	for i := range 3 {
		s += fmt.Sprintf(`,{"role":"assistant","content":[{"type":"thinking","thinking":"%s","signature":"r"},{"type":"text","text":"I read."},`+
			`{"type":"tool_use","id":"toolu_%d","name":"tool1","input":{"path":"/a/b.go","limit":%d}}]},{"role":"user","content":`+
			`[{"type":"tool_result","tool_use_id":"toolu_%d","content":[{"type":"text","text":"%s"}]}]}`, text(1), i, i, i, text(12))
	}
	return []byte(s + "]}")
}

func BenchmarkMessages(b *testing.B) { benchmarkRequest(b, turn(), Messages) }

func benchmarkRequest(b *testing.B, body []byte, convert func([]byte, Options) (*Request, error)) {
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := convert(body, Options{ID: "r1", MaxBytes: 1 << 20}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMessagesChunk(b *testing.B) {
	benchmarkChunks(b, func(b *testing.B) Answer { return begin(b, "") })
}

func benchmarkChunks(b *testing.B, begin func(b *testing.B) Answer) {
	const rest = `,"logprobs":null,"finish_reason":null,"token_ids":[1234]`
	for name, chunk := range map[string]string{
		"text": chunks(`"delta":{"content":" word"}` + rest),
		"call": chunks(`"delta":{"tool_calls":[{"index":0,"function":{"arguments":" \"word\""}}]}` + rest),
	} {
		b.Run(name, func(b *testing.B) {
			a := begin(b)
			if name == "call" {
				a.Events(nil, []byte(chunks(`"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}`)))
			}
			data, out := []byte(chunk), make([]byte, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				out = a.Events(out[:0], data)
			}
		})
	}
}
