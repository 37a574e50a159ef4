package view

import "github.com/tandem-pd/tandem/kv/wire"

// group is the KV-cache group of an engine that is followed: the first of those whose blocks are whole prefixes. Other
// groups (sliding windows, states of Mamba layers) hold pieces of a prompt under the same hashes. Where no event names
// a kind it is group 0; an event without a group is of every group.
type group struct {
	idx    int64
	kind   string // of group idx, "" while no event named it
	pieces string // kind of a group that holds pieces, while none that holds prefixes was named
}

// holdsPrefixes reports whether a group of a kind holds a prompt's blocks from the first on. The kinds are those of
// KVCacheSpecKind in vLLM 0.32's v1/kv_cache_interface.py; any other one is taken for pieces.
func holdsPrefixes(kind string) bool {
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// takes reports whether e is of the group that is followed. changed is true where the group's number has come to mean
// another kind: what was taken before is of another process.
func (g *group) takes(e *wire.Event) (ok, changed bool) {
	same := !e.GroupIdx.Set || e.GroupIdx.Value == g.idx
	switch {
	case e.Kind != wire.Stored || e.SpecKind == "" || e.GroupIdx.Value < 0:
		return same, false
	case holdsPrefixes(e.SpecKind):
		if g.kind == "" {
			changed = !same
			*g = group{idx: e.GroupIdx.Value, kind: e.SpecKind}
			return true, changed
		}
		return same, false
	case g.kind == "":
		g.pieces = e.SpecKind
	case e.GroupIdx.Set && same:
		*g = group{pieces: e.SpecKind}
		return false, true
	}
	return false, false
}

// window notes that the group that is followed, whose kind no event named, leaves blocks out, as a sliding window does.
func (g *group) window() {
	if g.kind == "" {
		g.pieces = "sliding_window"
	}
}

// number is one more than the group's, 0 where no event named its kind; restore takes it back.
func (g *group) number() uint64 {
	if g.kind == "" {
		return 0
	}
	return uint64(g.idx) + 1
}

func (g *group) restore(number uint64) {
	if number > 0 {
		*g = group{idx: int64(number - 1), kind: "full_attention"}
	}
}
