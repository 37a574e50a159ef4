package pools

import (
	"errors"
	"log/slog"
	"testing"
)

// A worker of half a pair whose engine hands nothing over does not join; alone
// it serves.
func TestPairsWithoutAHandOffAreRefused(t *testing.T) {
	r := NewRoster(Config{HandsOver: func(w *Worker) error {
		if w.Engine != "vllm" {
			return errors.New("no connector")
		}
		return nil
	}}, slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		engine string
		role   Role
		joins  bool
	}{
		{"vllm", Prefill, true}, {"vllm", Decode, true}, {"vllm", Both, true},
		{"sglang", Prefill, false}, {"sglang", Decode, false}, {"sglang", Both, true},
		{"trtllm", Prefill, false}, {"trtllm", Decode, false}, {"trtllm", Both, true},
	} {
		w := Worker{ID: c.engine + "-" + string(c.role), Model: "m", Role: c.role, Engine: c.engine, Address: "http://h:1", BlockSize: 16}
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
		name                    string
		engine                  string
		role, otherRole         Role
		size, otherSize, forced int
		joins                   bool
		otherPage               int
	}{
		{"a pair", "vllm", Prefill, Decode, 16, 64, 0, true, 0},
		{"the other way round", "vllm", Decode, Prefill, 16, 64, 0, true, 0},
		{"one pool", "vllm", Prefill, Prefill, 16, 64, 0, false, 0},
		{"with one that serves alone", "vllm", Both, Decode, 16, 64, 0, false, 0},
		{"an engine that does not convert", "sglang", Prefill, Decode, 16, 64, 0, false, 0},
		{"blocks of several pages", "sglang", Prefill, Decode, 16, 64, 0, true, 16},
		{"one pool, blocks of several pages", "sglang", Decode, Decode, 16, 64, 0, false, 16},
		{"where the operator says one size", "vllm", Prefill, Decode, 16, 64, 16, false, 0},
	} {
		r := NewRoster(Config{BlockSize: c.forced, MixesBlocks: func(w *Worker) bool { return w.Engine == "vllm" }}, slog.New(slog.DiscardHandler))
		first := Worker{ID: "a", Model: "m", Role: c.role, Engine: c.engine, Address: "http://h:1", BlockSize: c.size}
		second := Worker{ID: "b", Model: "m", Role: c.otherRole, Engine: c.engine, Address: "http://h:2", BlockSize: c.otherSize, PageSize: c.otherPage}
		if err := r.Put(first); err != nil {
			t.Fatal(err)
		}
		err := r.Put(second)
		if _, typed := errors.AsType[*RefusedError](err); (err == nil) != c.joins || !c.joins && !typed {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
