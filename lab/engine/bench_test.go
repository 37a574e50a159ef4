package engine

import (
	"fmt"
	"testing"
)

// BenchmarkStep is one decode step of a full batch: 256 sequences of 2,000
// tokens, each of which gets its next token.
func BenchmarkStep(b *testing.B) {
	cfg := Config{ContextLength: 600_000}
	c := newTestCore(b, cfg)
	now := epoch
	fill := func() {
		for i := range 256 {
			mustAdd(b, c, Request{ID: fmt.Sprint(i), Prompt: prompt(uint32(i), 2000), MaxTokens: 10_000, IgnoreEOS: true})
		}
		for len(c.running) < 256 || c.running[255].computed < 2000 {
			now = c.Step(now).Next
		}
	}
	fill()
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		// The cache holds 670,000 tokens: begin anew before it is full.
		if i%500 == 499 {
			b.StopTimer()
			for i := range 256 {
				c.Abort(fmt.Sprint(i))
			}
			fill()
			b.StartTimer()
		}
		now = c.Step(now).Next
	}
}

// BenchmarkAdmission is a prompt of 12,000 tokens from Add to its first token:
// hashing, matching, blocks, steps and events; cold, with its prefix cached,
// and with its hashes known.
func BenchmarkAdmission(b *testing.B) {
	run := func(b *testing.B, request func(i int) Request) {
		c := newTestCore(b, Config{})
		now := epoch
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			r := request(i)
			r.ID, r.MaxTokens = fmt.Sprint(i), 1
			mustAdd(b, c, r)
			for next := c.Step(now).Next; !next.IsZero(); next = c.Step(now).Next {
				now = next
			}
		}
	}
	b.Run("cold", func(b *testing.B) {
		p := prompt(1, 12_000)
		run(b, func(i int) Request {
			p[0] = uint32(i)
			return Request{Prompt: p}
		})
	})
	b.Run("cached", func(b *testing.B) {
		p := prompt(1, 12_000)
		run(b, func(int) Request { return Request{Prompt: p} })
	})
	b.Run("hashes", func(b *testing.B) {
		p := prompt(1, 12_000)
		hashes := make([]uint64, 0, 750)
		run(b, func(i int) Request {
			p[0] = uint32(i)
			hashes = BlockHashes(hashes[:0], p, 16, 0)
			return Request{PromptTokens: 12_000, Hashes: hashes}
		})
	})
}
