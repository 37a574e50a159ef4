package handoff

import (
	"slices"
	"testing"
)

func TestHeldReleasesOnceLastFirst(t *testing.T) {
	var h held
	var got []string
	say := func(s string) func() { return func() { got = append(got, s) } }
	d := h.hold(say("decode"))
	p := h.hold(say("prefill"))
	h.unwind(p) // a failed prefill keeps decode's room
	if !slices.Equal(got, []string{"prefill"}) {
		t.Fatalf("unwound to prefill's mark: %v", got)
	}
	h.hold(say("kv"))
	h.swap(d) // another decode worker: the KV stays
	h.hold(say("decode 2"))
	h.release()
	h.release()
	if want := []string{"prefill", "decode", "decode 2", "kv"}; !slices.Equal(got, want) {
		t.Errorf("released %v, want %v", got, want)
	}
}
