package events

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// An engine whose blocks do not go with the router's is named and predicted, not believed to hold nothing.
func TestBlockSizeThatDoesNotFitIsRefusedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := NewMemoryBus()
		t.Cleanup(memory.Close)
		lines := &logLines{}
		r := newRigWithLog(t, SubscriberConfig{}, memory, memory, slog.New(slog.NewTextHandler(lines, nil)))
		g := newFakeEngine(1, 24)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		publish := func(events []Event) {
			t.Helper()
			if err := p.Publish(events); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		time.Sleep(time.Second) // a heartbeat, so that its snapshot has come
		for range 20 {
			publish(g.step())
		}
		if s := r.status("w"); s.State != Predicted || s.Blocks == 0 {
			t.Fatalf("an engine with blocks of 24 tokens beside the router's 16: %+v", s)
		}
		if lines.count("blocks have 24 tokens") != 1 || lines.count("router's 16") != 1 {
			t.Errorf("the log does not name the sizes once:\n%s", lines.text.String())
		}
		// It cleared its cache and has blocks that fit: what it says counts again.
		publish([]Event{{Kind: Cleared}})
		prompt := ids(0, 64)
		publish([]Event{{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: prompt, BlockSize: 32}})
		// One odd block among many is refused by itself.
		publish([]Event{{Kind: Stored, Hashes: []Hash{3}, Parent: 2, HasParent: true, Tokens: ids(64, 24), BlockSize: 24}})
		if s := r.status("w"); s.State != Live {
			t.Errorf("blocks of 32 tokens beside the router's 16: %+v\n%s", s, lines.text.String())
		}
		if n := leading(r.idx, r.idx.Owner("w", 0), prompt, 16, tokens.Seed("", "")); n != 4 {
			t.Errorf("%d leading blocks, want 4", n)
		}
		if strings.Count(lines.text.String(), "whole again") != 1 {
			t.Errorf("the log does not say that it is known again:\n%s", lines.text.String())
		}
	})
}
