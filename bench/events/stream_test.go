package main

import (
	"hash/fnv"
	"testing"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/engine"
)

func smallStream(t *testing.T, seed uint64) *stream {
	t.Helper()
	s, err := newStream(streamConfig{Engines: 8, Block: 16, Cache: 128 * 16, Spread: 0.2, Seed: seed},
		conversation{Requests: 400, Rate: 200, Seed: seed}.workload().Requests)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fingerprint plays a stream to its end, with a restart and a cleared cache in it, and folds all that is said.
func fingerprint(t *testing.T, s *stream) (sum uint64, kinds map[engine.EventKind]int) {
	t.Helper()
	h := fnv.New64a()
	kinds = map[engine.EventKind]int{}
	for said := 0; ; said++ {
		st, more, err := s.next(1<<63 - 1)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return h.Sum64(), kinds
		}
		for _, e := range st.events {
			kinds[e.Kind]++
			for _, hash := range e.Hashes {
				_, _ = h.Write([]byte{byte(e.Kind), byte(st.engine.id), byte(hash), byte(hash >> 8), byte(st.at)})
			}
		}
		if said == 100 {
			s.engines[3].clear = true
			if err := s.restart(s.engines[2]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestSameSeedSameStream(t *testing.T) {
	a, kinds := fingerprint(t, smallStream(t, 1))
	b, _ := fingerprint(t, smallStream(t, 1))
	c, _ := fingerprint(t, smallStream(t, 2))
	if a != b || a == c {
		t.Errorf("%x, again %x, of another seed %x", a, b, c)
	}
	if kinds[engine.Stored] == 0 || kinds[engine.Removed] == 0 || kinds[engine.Cleared] != 1 {
		t.Errorf("events: %v", kinds)
	}
}

// What is taken for the truth is what the caches hold, and what the router would call these prompts' blocks.
func TestTruthIsTheCache(t *testing.T) {
	s := smallStream(t, 1)
	fingerprint(t, s)
	for _, m := range s.engines {
		really, err := truthOf(m.core)
		if err != nil {
			t.Fatal(err)
		}
		if !really.equal(m.truth) || !m.truth.equal(really) {
			t.Errorf("%s: %d blocks in the cache, %d by its events", name(m.id), len(really.held), len(m.truth.held))
		}
		for _, e := range m.core.Snapshot() {
			if e.HasParent {
				continue
			}
			for _, h := range tokens.SequenceHashes(nil, e.TokenIDs, 16, tokens.Seed("", "")) {
				if _, ok := m.truth.held[h]; !ok {
					t.Fatalf("%s: a block that begins a prompt is not known by the router's name", name(m.id))
				}
			}
		}
		m.truth.held[1] = struct{}{}
		if really.equal(m.truth) {
			t.Errorf("%s: one more block makes no difference", name(m.id))
		}
	}
}
