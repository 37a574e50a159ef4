package pools

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A worker of half a pair whose engine hands nothing over does not join; alone
// it serves.
func TestPairsWithoutAHandOffAreRefused(t *testing.T) {
	r := NewRoster(Config{HandsOver: func(w *Worker) error {
		if w.Engine != "vllm" {
			return errors.New("no connector")
		}
		return nil
	}}, quiet)
	for _, c := range []struct {
		engine string
		role   Role
		joins  bool
	}{
		{"vllm", Prefill, true}, {"vllm", Decode, true}, {"vllm", Both, true},
		{"sglang", Prefill, false}, {"sglang", Decode, false}, {"sglang", Both, true},
		{"trtllm", Prefill, false}, {"trtllm", Decode, false}, {"trtllm", Both, true},
	} {
		w := with(c.engine+"-"+string(c.role), func(w *Worker) { w.Role, w.Engine = c.role, c.engine })
		err := r.Put(w)
		_, joined := r.Lookup(w.ID)
		if joined != c.joins || (err == nil) != c.joins {
			t.Errorf("%s: joined %t, %v", w.ID, joined, err)
		}
		if _, typed := errors.AsType[*NoHandOffError](err); !c.joins && !typed {
			t.Errorf("%s: %v", w.ID, err)
		}
	}
	if got := r.Refused(); len(got) != 4 {
		t.Fatalf("%d are refused, want 4", len(got))
	}
	w := *r.Refused()[0].Worker
	if w.Role = Both; r.Put(w) != nil || len(r.Refused()) != 3 {
		t.Error("with role both it does not come in")
	}
}

// Prefill and decode may differ in block size where the hand-off converts; within
// a pool, with workers that serve alone, and of other engines they may not.
func TestPoolsOfDifferentBlockSizes(t *testing.T) {
	for _, c := range []struct {
		name, engine    string
		role, otherRole Role // with blocks of 16 and 64 tokens
		forced          int
		joins           bool
		otherPage       int
	}{
		{"a pair", "vllm", Prefill, Decode, 0, true, 0},
		{"the other way round", "vllm", Decode, Prefill, 0, true, 0},
		{"one pool", "vllm", Prefill, Prefill, 0, false, 0},
		{"with one that serves alone", "vllm", Both, Decode, 0, false, 0},
		{"an engine that does not convert", "sglang", Prefill, Decode, 0, false, 0},
		{"blocks of several pages", "sglang", Prefill, Decode, 0, true, 16},
		{"one pool, blocks of several pages", "sglang", Decode, Decode, 0, false, 16},
		{"where the operator says one size", "vllm", Prefill, Decode, 16, false, 0},
	} {
		r := NewRoster(Config{BlockSize: c.forced, MixesBlocks: func(w *Worker) bool { return w.Engine == "vllm" }}, quiet)
		join(t, r, "a", func(w *Worker) { w.Role, w.Engine = c.role, c.engine })
		err := r.Put(with("b", func(w *Worker) { w.Role, w.Engine, w.BlockSize, w.PageSize = c.otherRole, c.engine, 64, c.otherPage }))
		if _, typed := errors.AsType[*RefusedError](err); (err == nil) != c.joins || !c.joins && !typed {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

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
		r := NewRoster(Config{}, quiet)
		join(t, r, "p", func(w *Worker) {})
		join(t, r, "d", func(w *Worker) { w.Role = Decode; c.change(w) })
		assert.Equal(t, c.mixed, r.Fleet("m").Mixed, c.name)
	}
}
