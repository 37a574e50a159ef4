package discovery

import (
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/pools"
)

// A worker's address leads to another engine, while the first one keeps its connections and goes on answering: the other
// one is found.
func TestMovedWorkersAreFound(t *testing.T) {
	g := newGate(t)
	g.open(newStock(t, vllm("first")).URL)
	r, _, _ := prober(t, ProberConfig{}, "both "+g.URL()+",id=w1")
	for _, model := range []string{"first", "second"} {
		member(t, r, model, func(w *pools.Worker) bool { return w.Model == model })
		g.open(newStock(t, vllm("second")).URL)
	}
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
