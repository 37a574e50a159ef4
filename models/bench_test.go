package models

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
)

// prose are words of Qwen's vocabulary in sentences, so that a token has about four bytes.
const prose = "The scheduler looks at every waiting request, and the first one that fits into the free blocks is taken; others wait until more memory has been released. "

// talk is a chat of about so many bytes, in messages of 1,500: the system's, then users' and assistants' in turn.
func talk(bytes, turns int) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","stream":true,"messages":[{"role":"system","content":"You are a helpful assistant."}`)
	for i := 0; b.Len() < bytes || i < turns; i++ {
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		fmt.Fprintf(&b, `,{"role":"%s","content":"%d: %s"}`, role, i, strings.Repeat(prose, 10)[:min(1500, bytes/3)])
	}
	b.WriteString("]}")
	return b.String()
}

// with is the language with another amount of memory, and nothing in it.
func (l *Language) with(cacheBytes int64) *Language {
	fresh := newLanguage(l.Path, l.tokenizer.Tokenizer(), cacheBytes)
	fresh.templates, fresh.specials, fresh.now = l.templates, l.specials, l.now
	return fresh
}

// BenchmarkChat makes the tokens of a chat for Qwen 2.5: cold, and of a conversation that grew by a turn since it was
// last seen. The body is scanned already, as it is for every request.
func BenchmarkChat(b *testing.B) {
	l := qwen(b)
	for _, size := range []struct {
		name  string
		bytes int
	}{{"2kB", 2 << 10}, {"100k-tokens", 470_000}} {
		cold := make([]*openai.Request, 64)
		for i := range cold {
			cold[i] = scanned(b, openai.Chat, strings.ReplaceAll(talk(size.bytes, 0), "scheduler", fmt.Sprintf("planner %d", i)))
		}
		card := &Card{BlockSize: 16, Engine: "vllm"}
		n := 0
		run := func(b *testing.B, l *Language, reqs []*openai.Request) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				p, _, err := card.Tokens(reqs[i%len(reqs)], l)
				if i++; err != nil || p.IDs == nil {
					b.Fatal(err)
				}
				n = len(p.IDs)
			}
			b.ReportMetric(float64(n), "tokens")
		}
		b.Run("cold/"+size.name, func(b *testing.B) {
			run(b, l.with(0), cold)
		})
		b.Run("grown/"+size.name, func(b *testing.B) {
			fresh := l.with(1 << 30)
			grown := make([]*openai.Request, 512)
			for i := range grown { // each is the one before and two messages
				base := talk(size.bytes, 0)
				more := fmt.Sprintf(`,{"role":"user","content":"and %d? %s"},{"role":"assistant","content":"so %d, %s"}]}`, i, prose, i, prose)
				grown[i] = scanned(b, openai.Chat, strings.TrimSuffix(base, "]}")+more)
			}
			if _, _, err := card.Tokens(grown[0], fresh); err != nil {
				b.Fatal(err)
			}
			run(b, fresh, grown[1:])
		})
	}
	b.Run("ids/2kB", func(b *testing.B) {
		p, _, _ := (&Card{BlockSize: 16}).Tokens(scanned(b, openai.Chat, talk(2<<10, 0)), l)
		req := scanned(b, openai.Completions, `{"model":"m","prompt":`+jsonIDs(p.IDs)+`}`)
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := (&Card{BlockSize: 16}).Tokens(req, l); err != nil {
				b.Fatal(err)
			}
		}
	})
}
