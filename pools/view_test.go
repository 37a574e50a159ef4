package pools

import (
	"log/slog"
	"testing"
)

// A fleet is mixed when two of its workers may be unable to hand over.
func TestMixedFleets(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *Worker)
		mixed  bool
	}{
		{"alike", func(*Worker) {}, false},
		{"another engine", func(w *Worker) { w.Engine = "sglang" }, true},
		{"another release", func(w *Worker) { w.EngineVersion = "0.27.1" }, true},
		{"another connector", func(w *Worker) { w.Connector = "vllm-mooncake" }, true},
		{"other pages in blocks of one size", func(w *Worker) { w.PageSize = 1 }, true},
		{"one that serves alone", func(w *Worker) { w.Engine, w.Role = "sglang", Both }, false},
	} {
		r := NewRoster(Config{}, slog.New(slog.DiscardHandler))
		for i, role := range []Role{Prefill, Decode} {
			w := Worker{ID: string(role), Model: "m", Role: role, Engine: "vllm", Address: "http://h:1", BlockSize: 16}
			if i == 1 {
				c.change(&w)
			}
			if err := r.Put(w); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.Fleet("m").Mixed; got != c.mixed {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
