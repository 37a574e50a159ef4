package view

import "github.com/tandem-pd/tandem/kv/wire"

// group is the followed KV-cache group of an engine: the first whose blocks are whole prefixes. Other groups (sliding
// windows, states of Mamba layers) hold pieces of a prompt under the same hashes. It is group 0 until an event names a
// kind; an event without a group belongs to every group.
type group struct {
	idx    int64
	kind   string // of group idx, "" before an event named it
	pieces string // kind of a group with pieces, while none with prefixes was named
}

// holdsPrefixes reports whether groups of a kind hold a prompt's blocks from the first on: KVCacheSpecKind in vLLM 0.32's
// v1/kv_cache_interface.py. Unknown kinds count as pieces.
func holdsPrefixes(kind string) bool {
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// takes reports whether e belongs to the followed group. changed reports that the group's number has another kind now:
// earlier events were another process's.
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

// window records that the followed group, without a named kind, omits blocks like a sliding window.
func (g *group) window() {
	if g.kind == "" {
		g.pieces = "sliding_window"
	}
}

// number returns the group's number plus one, 0 before an event named its kind.
func (g *group) number() uint64 {
	if g.kind == "" {
		return 0
	}
	return uint64(g.idx) + 1
}
