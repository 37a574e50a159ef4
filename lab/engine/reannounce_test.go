package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A request that asks for it has the prefix that it uses again announced from its
// beginning, before what it adds; nobody else has, and no engine that does not
// know how.
func TestReusedPrefixIsToldAgain(t *testing.T) {
	first, longer := prompt(1, 33), append(prompt(1, 33), prompt(9, 12)...)
	for _, tc := range []struct {
		name        string
		reannounces bool
		request     Request
		want        []string // stored events: tokens before, and told
	}{
		{"asked for", true, Request{Prompt: longer, Reannounce: true}, []string{"0+32", "32+12"}},
		{"not asked for", true, Request{Prompt: longer}, []string{"32+12"}},
		{"an engine that does not know how", false, Request{Prompt: longer, Reannounce: true}, []string{"32+12"}},
		{"nothing is used again", true, Request{Prompt: prompt(7, 16), Reannounce: true}, []string{"0+16"}},
		{"all but the last block", true, Request{Prompt: prompt(1, 32), Reannounce: true}, []string{"0+28"}},
		{"no tokens to tell", true, Request{PromptTokens: 32, Hashes: BlockHashes(nil, prompt(1, 32), 4, 0), Reannounce: true}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := smallConfig()
			cfg.Reannounces = tc.reannounces
			c := newTestCore(t, cfg)
			mustAdd(t, c, Request{ID: "a", Prompt: first, MaxTokens: 1})
			_, now := drive(t, c, epoch)
			tc.request.ID, tc.request.MaxTokens = "b", 1
			mustAdd(t, c, tc.request)
			known := map[uint64]int{} // tokens up to a block's end
			for _, e := range c.Snapshot() {
				for i, h := range e.Hashes {
					known[h] = known[e.Parent] + (i+1)*e.BlockSize
				}
			}
			var got []string
			_, events, _ := driven(t, c, now)
			for _, e := range events {
				before := known[e.Parent]
				if !e.HasParent {
					before = 0
				}
				got = append(got, fmt.Sprintf("%d+%d", before, len(e.Hashes)*e.BlockSize))
				if e.Kind != Stored || !slices.Equal(e.TokenIDs, tc.request.Prompt[before:before+len(e.TokenIDs)]) || len(e.TokenIDs) != len(e.Hashes)*e.BlockSize {
					t.Errorf("event %+v", e)
				}
				for i, h := range e.Hashes {
					known[h] = before + (i+1)*e.BlockSize
				}
			}
			assert.True(t, slices.Equal(got, tc.want), "told %v, want %v", got, tc.want)
		})
	}
}
