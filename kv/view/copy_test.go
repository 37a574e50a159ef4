package view

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// differsCopied says in what a view restored from v's copy is not v, "" for nothing. In the index it has what v's blocks hold;
// v's own index lacks a block that the engine held under two names once one of them has gone.
func differsCopied(v *View) string {
	data := v.Copy().Append(nil)
	c, err := ReadCopy(data, v.blockSize)
	if err != nil {
		return err.Error()
	}
	again, part := newTestView(v.blockSize)
	if !again.Restore(c) {
		return "it is not restored"
	}
	if again.Blocks() != v.Blocks() || again.EngineBlock() != v.EngineBlock() {
		return fmt.Sprintf("%d blocks of %d tokens, want %d of %d", again.Blocks(), again.EngineBlock(), v.Blocks(), v.EngineBlock())
	}
	if !maps.Equal(again.copies, v.copies) || again.again != v.again || again.known.device != v.known.device {
		return fmt.Sprintf("%d copies, %d of them among %d blocks on the device, want %d, %d, %d",
			len(again.copies), again.again, again.known.device, len(v.copies), v.again, v.known.device)
	}
	var held [index.Tiers]map[uint64]bool
	for i, m := range v.known.marks {
		if m == 0 {
			continue
		}
		want := v.known.at(i)
		at, ok := again.known.search(v.known.slots[i].key)
		if !ok || again.known.at(at) != want || !slices.Equal(again.known.run(at), v.known.run(i)) ||
			!slices.Equal(again.known.tail(nil, at), v.known.tail(nil, i)) {
			return fmt.Sprintf("block %+v is not the same", want)
		}
		for t := range held {
			if want.held&(1<<t) == 0 {
				continue
			}
			if held[t] == nil {
				held[t] = map[uint64]bool{}
			}
			for _, h := range v.ownOf(i, &want) {
				held[t][h] = true
			}
		}
	}
	for t := range held {
		if got := part.On(index.Tier(t)); len(got) != len(held[t]) || slices.ContainsFunc(got, func(h uint64) bool { return !held[t][h] }) {
			return fmt.Sprintf("tier %d: %d blocks indexed, want %d", t, len(got), len(held[t]))
		}
	}
	return ""
}

// A copy that is of another block size, too large for the rank, cut short or continued is refused, and changes nothing.
func TestCopiesThatAreRefused(t *testing.T) {
	v, _ := newTestView(16)
	v.Apply([]wire.Event{testkit.Chain(1, 2000)})
	whole := v.Copy().Append(nil)
	_, err := ReadCopy(whole, 32)
	assert.ErrorIs(t, err, errCopySize, "another block size")
	for _, bad := range [][]byte{nil, whole[:1], whole[:len(whole)-1], whole[:len(whole)/2], append(bytes.Clone(whole), 0),
		bytes.Repeat([]byte{0xff}, 100)} {
		_, err := ReadCopy(bad, 16)
		assert.Error(t, err, "%d of %d bytes are taken", len(bad), len(whole))
	}
	c, err := ReadCopy(whole, 16)
	require.NoError(t, err)
	small, part := newTestView(16)
	small.Register(100) // so that 1,024 are taken
	assert.True(t, !small.Restore(c) && small.Blocks() == 0 && part.Blocks() == 0 && !small.Overgrown(),
		"%d blocks of a rank with 100", small.Blocks())
}

// FuzzReadCopy restores anything, and has the view follow an engine from there.
func FuzzReadCopy(f *testing.F) {
	v, _ := newTestView(4)
	odd := testkit.Chain(2, 3) // 48 tokens
	odd.BlockSize, odd.Hashes, odd.CacheSalt = 6, append(odd.Hashes, 4, 5, 6, 7, 8), "s"
	v.Apply([]wire.Event{testkit.Chain(1, 3), odd})
	f.Add(v.Copy().Append(nil))
	f.Add([]byte{4, 4, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ReadCopy(data, 4)
		if err != nil {
			return
		}
		v, part := newTestView(4)
		v.Register(1000)
		if !v.Restore(c) {
			return
		}
		require.Empty(t, differsCopied(v))
		next := testkit.Chain(9, 4)
		var all []wire.Hash
		for i, m := range v.known.marks {
			if m != 0 {
				all = append(all, unmix(v.known.slots[i].key))
			}
		}
		if len(all) > 0 {
			next.Parent, next.HasParent = all[0], true
		}
		v.Apply([]wire.Event{next})
		for _, medium := range slices.Repeat([]string{"GPU", "CPU", "DISK", "SHARED", "moon"}, 1+mostCopies) {
			v.Apply([]wire.Event{{Kind: wire.Removed, Medium: medium, Hashes: append(all, next.Hashes...)}})
		}
		assert.True(t, v.Blocks() == 0 && part.Blocks() == 0, "%d blocks are left, %d in the index", v.Blocks(), part.Blocks())
	})
}
