package follow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// step tells a flow one thing, in the words of TestFlow's tables.
func step(f *flow, words string) string {
	var verb string
	var epoch, seq uint64
	var asked horizon
	if n, err := fmt.Sscan(words, &verb, &epoch, &seq); n < 3 {
		return err.Error()
	}
	switch verb {
	case "msg", "clear":
		v := f.observe(epoch, seq, verb == "clear")
		if v == newEpoch {
			return v.String() + ", " + step(f, words)
		}
		if v == gap {
			f.hold(seq, nil)
		}
		out := v.String()
		for _, ok := f.next(); ok; _, ok = f.next() {
			out += fmt.Sprint(" +", f.seq)
		}
		return out
	case "beacon":
		v := f.beacon(epoch, seq)
		if v == newEpoch {
			return v.String() + ", " + step(f, words)
		}
		return v.String()
	case "snapshot": // that was asked for before any number of the epoch was heard
		asked.epoch = f.epoch
	case "late": // a snapshot that was asked for at epoch 1
		asked.epoch = 1
	case "word": // a snapshot that was asked for after all that was heard
		asked = f.horizon()
	}
	out := fmt.Sprint(f.restore(asked, epoch, seq))
	for _, ok := f.next(); ok; _, ok = f.next() {
		out += fmt.Sprint(" +", f.seq)
	}
	return out
}

func TestFlow(t *testing.T) {
	for _, c := range []struct {
		name   string
		steps  []string // "what epoch seq: answer"
		behind bool
		epoch  uint64
		seq    uint64
	}{
		{"in order from the start", []string{"msg 1 1: new epoch, apply", "msg 1 2: apply", "msg 1 3: apply"}, false, 1, 3},
		{"duplicates", []string{"msg 1 1: new epoch, apply", "msg 1 1: stale", "msg 1 2: apply", "msg 1 1: stale"}, false, 1, 2},
		{"late to the party", []string{"msg 1 7: new epoch, gap", "msg 1 8: gap", "snapshot 1 7: true +8"}, false, 1, 8},
		{"gap filled by snapshot", []string{"msg 1 1: new epoch, apply", "msg 1 3: gap", "msg 1 4: gap", "snapshot 1 3: true +4",
			"msg 1 5: apply"}, false, 1, 5},
		{"snapshot ahead of what is held", []string{"msg 1 2: new epoch, gap", "msg 1 3: gap", "snapshot 1 9: true", "msg 1 9: stale",
			"msg 1 10: apply"}, false, 1, 10},
		{"snapshot too old for what is held", []string{"msg 1 5: new epoch, gap", "snapshot 1 3: true"}, true, 1, 3},
		{"a second gap behind the first", []string{"msg 1 2: new epoch, gap", "msg 1 4: gap", "snapshot 1 1: true +2",
			"snapshot 1 3: true +4"}, false, 1, 4},
		{"reordered, healed without a snapshot", []string{"msg 1 2: new epoch, gap", "msg 1 1: apply +2", "msg 1 3: apply"}, false, 1, 3},
		{"snapshot overtaken by late messages",
			[]string{"msg 1 1: new epoch, apply", "msg 1 3: gap", "msg 1 2: apply +3", "snapshot 1 2: false"}, false, 1, 3},
		{"clear needs nothing before it", []string{"msg 1 1: new epoch, apply", "clear 1 9: apply", "msg 1 5: stale", "msg 1 10: apply"},
			false, 1, 10},
		{"clear is a barrier to a snapshot in flight",
			[]string{"msg 1 1: new epoch, apply", "msg 1 4: gap", "clear 1 6: apply", "snapshot 1 4: false"}, false, 1, 6},
		{"clear keeps what came after it", []string{"msg 1 1: new epoch, apply", "msg 1 7: gap", "msg 1 3: gap", "clear 1 6: apply +7"},
			false, 1, 7},
		{"heartbeat finds a lost end", []string{"msg 1 1: new epoch, apply", "beacon 1 1: stale", "beacon 1 2: gap"}, true, 1, 1},
		{"and a snapshot mends it", []string{"msg 1 1: new epoch, apply", "beacon 1 2: gap", "snapshot 1 2: true", "beacon 1 2: stale"},
			false, 1, 2},
		{"heartbeat of an idle publisher", []string{"beacon 1 0: new epoch, stale", "msg 1 1: apply"}, false, 1, 1},
		{"restart", []string{"msg 1 1: new epoch, apply", "msg 1 3: gap", "msg 2 1: new epoch, apply", "msg 1 4: stale",
			"msg 2 2: apply"}, false, 2, 2},
		{"restart found by its heartbeat", []string{"msg 1 1: new epoch, apply", "beacon 2 0: new epoch, stale", "msg 1 2: stale"}, false, 2, 0},
		{"snapshot of the old epoch, asked for before the restart",
			[]string{"msg 1 5: new epoch, gap", "msg 2 1: new epoch, apply", "late 1 5: false"}, false, 2, 1},
		{"snapshot of a new epoch", []string{"msg 1 5: new epoch, gap", "snapshot 2 3: true", "msg 1 6: stale", "msg 2 4: apply"}, false, 2, 4},
		{"snapshot brings an epoch back that was thought over",
			[]string{"msg 1 1: new epoch, apply", "msg 2 4: new epoch, gap", "snapshot 1 3: true", "msg 2 5: stale", "msg 1 4: apply"}, false, 1, 4},
		{"snapshot before any message", []string{"snapshot 1 4: true", "msg 1 4: stale", "msg 1 5: apply"}, false, 1, 5},
		{"snapshot of nothing", []string{"snapshot 1 0: true", "msg 1 1: apply"}, false, 1, 1},
		{"a number that no publisher used", []string{"msg 1 1: new epoch, apply", "beacon 1 900: gap", "msg 1 2: apply",
			"word 1 2: true"}, false, 1, 2},
		{"and what came under it", []string{"msg 1 1: new epoch, apply", "msg 1 900: gap", "word 1 1: true", "msg 1 2: apply"}, false, 1, 2},
		{"and a clear under it", []string{"msg 1 1: new epoch, apply", "clear 1 900: apply", "msg 1 2: stale", "word 1 2: true",
			"msg 1 3: apply"}, false, 1, 3},
		{"a clear while a snapshot was on its way is true",
			[]string{"msg 1 1: new epoch, apply", "clear 1 900: apply", "snapshot 1 2: false"}, false, 1, 900},
		{"epoch 0 is none", []string{"snapshot 0 4: false", "msg 0 5: stale"}, false, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f flow
			for _, s := range c.steps {
				words, want, _ := strings.Cut(s, ": ")
				assert.Equal(t, want, step(&f, words), "%s", words)
			}
			assert.True(t, f.behind() == c.behind && f.epoch == c.epoch && f.seq == c.seq,
				"at %d/%d behind=%v, want %d/%d %v", f.epoch, f.seq, f.behind(), c.epoch, c.seq, c.behind)
		})
	}
}

func TestFlowHoldsWithinBounds(t *testing.T) {
	var f flow
	f.observe(1, 1, false)
	big := make([]byte, maxHeldBytes/4)
	for seq := uint64(3); seq < 3+2*maxHeld; seq++ {
		f.observe(1, seq, false)
		f.hold(seq, nil)
		f.hold(seq, nil)
	}
	assert.Len(t, f.held, maxHeld, "held")
	for seq := uint64(100_000); seq < 100_010; seq++ {
		f.observe(1, seq, false)
		f.hold(seq, big)
	}
	assert.True(t, len(f.held) == 4 && f.heldBytes <= maxHeldBytes, "%d held of %d bytes", len(f.held), f.heldBytes)
	require.True(t, f.restore(horizon{epoch: 1}, 1, 100_005), "snapshot refused")
	applied := 0
	for _, ok := f.next(); ok; _, ok = f.next() {
		applied++
	}
	assert.Equal(t, 4, applied, "messages followed the snapshot, want 4")
	assert.True(t, len(f.held) == 0 && f.heldBytes == 0 && f.seq == 100_009 && !f.behind(),
		"%d held of %d bytes at %d", len(f.held), f.heldBytes, f.seq)
}

// TestFlowAppliesEachOnceInOrder sends numbers through loss, duplication and reordering, and answers some gaps with
// snapshots: whatever happens, each number is in the view once, in order, by itself or in a snapshot.
func TestFlowAppliesEachOnceInOrder(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var f flow
		var sent []uint64
		for seq := uint64(1); seq <= 100; seq++ {
			for range 1 + rng.IntN(10)/9 {
				if rng.IntN(10) > 0 {
					sent = append(sent, seq)
				}
			}
		}
		for range 20 {
			i := rng.IntN(len(sent) - 1)
			sent[i], sent[i+1] = sent[i+1], sent[i]
		}
		at, top := uint64(0), uint64(0)
		advance := func(to uint64) {
			require.Equal(t, at+1, to, "seed %d applied at %d", seed, at)
			at = to
		}
		for _, seq := range sent {
			top = max(top, seq)
			v := f.observe(7, seq, false)
			if v == newEpoch {
				v = f.observe(7, seq, false)
			}
			switch v {
			case apply:
				advance(seq)
			case gap:
				f.hold(seq, nil)
			}
			if rng.IntN(20) == 0 {
				if snap := at + uint64(rng.IntN(int(top-at)+1)); f.restore(horizon{epoch: 7}, 7, snap) {
					at = snap
				}
			}
			for _, ok := f.next(); ok; _, ok = f.next() {
				advance(f.seq)
			}
			if f.seq != at || f.behind() != (at < top) || slices.ContainsFunc(f.held, func(m message) bool { return m.seq <= at }) {
				t.Fatalf("seed %d: flow at %d, model at %d of %d, %d held", seed, f.seq, at, top, len(f.held))
			}
		}
	}
}
