package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
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

func TestAnyInterruptionContinuesTheSame(t *testing.T) {
	cfg := smallConfig()
	p := prompt(7, 13)
	whole := func(p []uint32, max int) []uint32 {
		c := newTestCore(t, cfg)
		mustAdd(t, c, Request{ID: "a", Prompt: p, MaxTokens: max, IgnoreEOS: true})
		outs, _ := drive(t, c, epoch)
		return tokensOf(outs, "a")
	}
	want := whole(p, 60)
	for cut := range want {
		got := slices.Concat(want[:cut], whole(slices.Concat(p, want[:cut]), 60-cut))
		require.True(t, slices.Equal(got, want), "interrupted after %d tokens, the answer differs", cut)
	}
}

func TestChoicesDiffer(t *testing.T) {
	c := newTestCore(t, smallConfig())
	for i := range 3 {
		mustAdd(t, c, Request{ID: fmt.Sprint(i), Prompt: prompt(1, 9), Choice: i, MaxTokens: 20, IgnoreEOS: true})
	}
	outs, _ := drive(t, c, epoch)
	if slices.Equal(tokensOf(outs, "0"), tokensOf(outs, "1")) || slices.Equal(tokensOf(outs, "1"), tokensOf(outs, "2")) {
		t.Error("two choices have one answer")
	}
}
