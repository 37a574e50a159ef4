package pools

import (
	"errors"
	"log/slog"
	"testing"
)

// A worker of half a pair whose engine hands nothing over does not join; alone
// it serves.
func TestPairsWithoutAHandOffAreRefused(t *testing.T) {
	r := NewRoster(Config{HandsOver: func(engine string) bool { return engine == "vllm" }}, slog.New(slog.DiscardHandler))
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
