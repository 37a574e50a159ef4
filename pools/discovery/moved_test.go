package discovery

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// A worker's address leads to another engine, while the first one keeps its connections and goes on answering: the other
// one is found.
func TestMovedWorkersAreFound(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	g := newGate(t)
	g.open(newStock(t, vllm("first")).URL)
	roster := pools.NewRoster(pools.Config{}, log)
	p, err := NewProber(roster.From("flags"), ProberConfig{Every: 5 * time.Millisecond, Timeout: 5 * time.Second}, log)
	if err != nil {
		t.Fatal(err)
	}
	p.Set(list(t, "both "+g.URL()+",id=w1"))
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(t.Context()) })
	t.Cleanup(running.Wait)
	is := func(model string) func() bool {
		return func() bool { m, ok := roster.Lookup("w1"); return ok && m.Worker.Model == model }
	}
	within(t, 10*time.Second, "the first is there", is("first"))
	g.open(newStock(t, vllm("second")).URL)
	within(t, 10*time.Second, "the second is there", is("second"))
}

// A worker that comes with an incarnation, as a pod does, has it for its first process; each later one has another that begins with it.
func TestGivenIncarnationsGrow(t *testing.T) {
	p, err := NewProber(pools.NewRoster(pools.Config{}, quiet).From("pods"), ProberConfig{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	f := p.probe(pools.Worker{ID: "w", Incarnation: "uid-1"}, 0)
	seen := map[string]bool{}
	for range 3 {
		f.incarnation = f.draw()
		if seen[f.incarnation] || !strings.HasPrefix(f.incarnation, "uid-1") {
			t.Errorf("%q after %v", f.incarnation, seen)
		}
		seen[f.incarnation] = true
	}
	if !seen["uid-1"] {
		t.Errorf("the first is another: %v", seen)
	}
}
