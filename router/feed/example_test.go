package feed_test

import (
	"fmt"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// An index fed by what an engine says: its hashes are its own, and the tokens
// count. A router.Router over the same index chooses by it.
func Example() {
	cached := index.New(index.Config{})
	owner := cached.Owner("west", 0)
	west := view.New(cached.Part("west", 0), 2)
	west.Apply([]wire.Event{
		{Kind: wire.Stored, Hashes: []wire.Hash{901, 902}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2},
		{Kind: wire.Stored, Hashes: []wire.Hash{903}, Parent: 902, HasParent: true, Tokens: []uint32{5, 6}, BlockSize: 2},
	})

	prompt := tokens.SequenceHashes(nil, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 2, tokens.Seed("", ""))
	var found index.Matches
	cached.Match(prompt, &found)
	fmt.Println("cached:", found.Leading(owner), "of", len(prompt), "blocks")

	west.Apply([]wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{902}}})
	cached.Match(prompt, &found)
	fmt.Println("after the second was evicted:", found.Leading(owner))
	// Output:
	// cached: 3 of 4 blocks
	// after the second was evicted: 1
}
