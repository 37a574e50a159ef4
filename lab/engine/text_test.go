package engine

import (
	"testing"
)

func TestStoppingTokens(t *testing.T) {
	v := testVocabulary()
	// The first answer that ends by itself, and where.
	seed, at := uint32(0), 0
	for at = 0; at < 2; seed++ {
		s := Begin(0).FoldAll(prompt(seed, 8))
		for at = 0; at < 60; at++ {
			token := v.Next(s, true)
			if token == v.EOS {
				break
			}
			s = s.Fold(token)
		}
		if at == 60 {
			at = 0
		}
	}
	seed--
	p := prompt(seed, 8)
	third := v.Next(Begin(0).FoldAll(p).Fold(v.Next(Begin(0).FoldAll(p), true)), true)
	for _, tc := range []struct {
		name   string
		req    Request
		tokens int
		reason Reason
	}{
		{"the end token", Request{MaxTokens: 100}, at + 1, Stopped},
		{"ignored", Request{MaxTokens: 100, IgnoreEOS: true}, 100, Length},
		{"not yet allowed", Request{MaxTokens: at + 1, MinTokens: at + 1}, at + 1, Length},
		{"a stop token", Request{MaxTokens: 100, StopTokens: []uint32{third}}, 2, Stopped},
		{"a stop token before its time", Request{MaxTokens: 3, MinTokens: 2, StopTokens: []uint32{third}}, 3, Length},
		{"the context's end", Request{IgnoreEOS: true}, 160 - 8, Length},
	} {
		c := newTestCore(t, smallConfig())
		tc.req.ID, tc.req.Prompt = "a", p
		mustAdd(t, c, tc.req)
		outs, _ := drive(t, c, epoch)
		if last := outs[len(outs)-1]; len(outs) != tc.tokens || last.Reason != tc.reason {
			t.Errorf("%s: %d tokens, %v; want %d, %v", tc.name, len(outs), last.Reason, tc.tokens, tc.reason)
		}
	}
}
