package handoff

import (
	"slices"
	"testing"
)

func TestCleanupStackFreesOnceLastFirst(t *testing.T) {
	var s cleanupStack
	var got []string
	say := func(what string) func() { return func() { got = append(got, what) } }
	d := s.push(say("decode"))
	p := s.push(say("prefill"))
	s.free(p) // a failed prefill keeps decode's room
	s.free(p)
	if !slices.Equal(got, []string{"prefill"}) {
		t.Fatalf("freed prefill's: %v", got)
	}
	s.push(say("kv"))
	s.free(d) // another decode worker: the KV stays
	s.push(say("decode 2"))
	s.release()
	s.release()
	if want := []string{"prefill", "decode", "decode 2", "kv"}; !slices.Equal(got, want) {
		t.Errorf("freed %v, want %v", got, want)
	}
}
