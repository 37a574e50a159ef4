package kvevents

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/internal/tier"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// An engine whose blocks do not go with the router's is named and predicted, not believed to hold nothing.
func TestBlockSizeThatDoesNotFitIsRefusedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, lines := memoryBus(t), &logLines{}
		r := newRigWithLog(t, follow.Config{}, bus, bus, slog.New(slog.NewTextHandler(lines, nil)))
		p := r.speaks(1, publish.Config{})
		r.track("w")
		time.Sleep(time.Second) // a heartbeat, so that its snapshot has come
		for odd := eventstest.NewEngine(1, 24); p.Stats().Seq < 20; synctest.Wait() {
			p.tell(odd.Step()...)
		}
		if s := r.status("w"); s.State != follow.Predicted || s.Blocks == 0 {
			t.Fatalf("an engine with blocks of 24 tokens beside the router's 16: %+v", s)
		}
		if lines.count("blocks have 24 tokens") != 1 || lines.count("router's 16") != 1 {
			t.Errorf("the log does not name the sizes once:\n%s", lines)
		}
		// It cleared its cache and has blocks that fit: what it says counts again.
		prompt := eventstest.IDs(0, 64)
		p.tell(wire.Event{Kind: wire.Cleared})
		p.tell(wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: prompt, BlockSize: 32})
		// One odd block among many is refused by itself.
		p.tell(wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{3}, Parent: 2, HasParent: true, Tokens: eventstest.IDs(64, 24), BlockSize: 24})
		synctest.Wait()
		if s := r.status("w"); s.State != follow.Live {
			t.Errorf("blocks of 32 tokens beside the router's 16: %+v\n%s", s, lines)
		}
		if n := r.idx.Of("w", 0).Leading(tier.Device, tokens.SequenceHashes(nil, prompt, 16, tokens.Seed("", ""))); n != 4 {
			t.Errorf("%d leading blocks, want 4", n)
		}
		assert.Equal(t, 1, lines.count("KV events repaired"), lines.String())
	})
}
