package kvevents

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		memory := eventstest.NewBus()
		t.Cleanup(memory.Close)
		lines := &logLines{}
		r := newRigWithLog(t, follow.Config{}, memory, memory, slog.New(slog.NewTextHandler(lines, nil)))
		g := eventstest.NewEngine(1, 24)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		publish := func(events []wire.Event) {
			t.Helper()
			if err := p.Publish(events); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(time.Second) // a heartbeat, so that its snapshot has come
		for range 20 {
			publish(g.Step())
		}
		if s := r.status("w"); s.State != follow.Predicted || s.Blocks == 0 {
			t.Fatalf("an engine with blocks of 24 tokens beside the router's 16: %+v", s)
		}
		if lines.count("blocks have 24 tokens") != 1 || lines.count("router's 16") != 1 {
			t.Errorf("the log does not name the sizes once:\n%s", lines.text.String())
		}
		// It cleared its cache and has blocks that fit: what it says counts again.
		publish([]wire.Event{{Kind: wire.Cleared}})
		prompt := eventstest.IDs(0, 64)
		publish([]wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: prompt, BlockSize: 32}})
		// One odd block among many is refused by itself.
		publish([]wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{3}, Parent: 2, HasParent: true, Tokens: eventstest.IDs(64, 24), BlockSize: 24}})
		if s := r.status("w"); s.State != follow.Live {
			t.Errorf("blocks of 32 tokens beside the router's 16: %+v\n%s", s, lines.text.String())
		}
		if n := r.idx.Of("w", 0).Leading(tier.Device, tokens.SequenceHashes(nil, prompt, 16, tokens.Seed("", ""))); n != 4 {
			t.Errorf("%d leading blocks, want 4", n)
		}
		if strings.Count(lines.text.String(), "KV events repaired") != 1 {
			t.Errorf("the log does not say that it is known again:\n%s", lines.text.String())
		}
	})
}
