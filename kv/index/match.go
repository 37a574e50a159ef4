package index

import (
	"math/bits"
	"sync/atomic"
)

// Matches is the result of one [Index.Match]. The zero value is ready; reuse avoids allocation. It must not be shared
// between goroutines during a Match.
type Matches struct {
	dir  *directory      // the owners of the result
	ends [Tiers][]uint32 // by slot: the end of the run up to this tier
	has  [Tiers]bool     // ends[t] was filled

	live []uint64 // bitset of owners whose run continues
	n    int      // owners in live
	last uint64   // the last inline word that live was reduced to

	open    []uint64 // bitset of owners to follow block by block
	moved   []uint64 // the counts of open when it was read
	jumped  bool     // blocks were skipped
	waiting int      // owners that have not joined
	deepest int      // the longest run on Device

	heads []int32 // by block: first owner whose run on a lower tier begins there, -1 none
	peers []int32 // by slot: the next such owner, -1 none
}

// batch is how many hashes are prefetched before the first is used, to wait for many cache lines at once. It is also
// the length of a jump; jumps is how many jumps to look ahead.
const (
	batch = 32
	jumps = 8
)

// Match finds for every owner how many leading blocks of a prompt it holds. hashes are the prompt's sequence hashes in
// order. The result is exact, also for owners with gaps; with concurrent writers, each (owner, block) is as at some
// moment during the call.
//
// Owners without gaps hold all blocks before one that they hold. If all remaining owners hold the last of 32 blocks,
// the others are skipped. Match stops at the first block without owners: a miss costs one read.
func (x *Index) Match(hashes []uint64, m *Matches) {
	m.reset(x.dir.Load())
	for t := Device; t < Tiers; t++ {
		if tab := x.tables[t].Load(); tab != nil {
			m.match(tab, &x.gaps[t], t, hashes)
		} else if t == Device {
			m.fill(t)
		}
	}
	if m.deepest > 0 && x.budget.pressed() {
		if tab := x.tables[Device].Load(); tab != nil {
			tab.meet(hashes[m.deepest-1])
		}
	}
}

// Leading returns how many leading blocks o holds on Device.
func (m *Matches) Leading(o Owner) int {
	if !m.dir.has(o) {
		return 0
	}
	return int(m.ends[Device][o.slot()])
}

// Raise raises each of runs to the leading blocks of the owner at its index. It is [Matches.Leading] for many owners.
// [NoOwner] raises nothing.
func (m *Matches) Raise(runs []uint32, owners []Owner) {
	if m.dir == nil {
		return
	}
	ids, ends := m.dir.ids, m.ends[Device]
	ends = ends[:len(ids)]
	runs = runs[:len(owners)]
	for i, o := range owners {
		// NoOwner's slot is beyond every directory
		if slot := o.slot(); slot < len(ids) && ids[slot] == o {
			runs[i] = max(runs[i], ends[slot])
		}
	}
}

// Tier returns how many blocks tier t adds to o's run without a gap, from the end of the faster tiers' run. The sum
// over all tiers need not be computed if the blocks can be loaded to the device.
func (m *Matches) Tier(o Owner, t Tier) int {
	if t >= Tiers || !m.has[t] || !m.dir.has(o) {
		return 0
	}
	end := m.ends[t][o.slot()]
	if t == Device {
		return int(end)
	}
	return int(end - m.ends[m.faster(t)][o.slot()])
}

// reset prepares m for the owners of dir.
func (m *Matches) reset(dir *directory) {
	m.dir = dir
	m.has = [Tiers]bool{}
	words := (len(dir.owners) + 63) / 64
	if cap(m.live) < words {
		m.live = make([]uint64, words)
	}
	m.live = m.live[:words]
	if cap(m.open) < words {
		m.open, m.moved = make([]uint64, words), make([]uint64, words)
	}
	m.open, m.moved = m.open[:words], m.moved[:words]
	m.deepest = 0
}

// fill makes room for tier t's ends and sets them to zero.
func (m *Matches) fill(t Tier) {
	n := len(m.dir.owners)
	if cap(m.ends[t]) < n {
		m.ends[t] = make([]uint32, n)
	}
	m.ends[t] = m.ends[t][:n]
	clear(m.ends[t])
	m.has[t] = true
}

// faster returns the next faster tier with ends.
func (m *Matches) faster(t Tier) Tier {
	for t--; !m.has[t]; t-- {
	}
	return t
}

// gapped reports whether a live owner may have gaps.
func (m *Matches) gapped() bool {
	for k, live := range m.live {
		if live&m.open[k] != 0 {
			return true
		}
	}
	return false
}

// kept reports, in the two usual cases, that word names all live owners: the same word as before, or a bitset of one
// word. False means unknown.
func (m *Matches) kept(g *generation, word uint64) bool {
	if word&bitOver == 0 {
		return word&^bitMet == m.last && word != 0
	}
	if len(m.live) > 1 {
		return false
	}
	arena := *g.arena.Load()
	return m.live[0]&^atomic.LoadUint64(&arena[int(word&setMask)*g.stride]) == 0
}

// covers reports whether word names all live owners.
func (m *Matches) covers(g *generation, word uint64) bool {
	if word&bitOver != 0 {
		set := g.bitset(word)
		for k, live := range m.live {
			if live != 0 && (k >= len(set) || live&^atomic.LoadUint64(&set[k]) != 0) {
				return false
			}
		}
		return true
	}
	if m.n > lanes {
		return false
	}
	for w, n := word&^bitFlags, m.n; w != 0; w >>= laneBits {
		if slot := int(w&laneMask) - 1; slot/64 < len(m.live) && m.live[slot/64]>>(slot%64)&1 != 0 {
			if n--; n == 0 {
				m.last = word &^ bitMet
				return true
			}
		}
	}
	return false
}

// join queues the owners with blocks on tier t at the block where their faster run ended.
func (m *Matches) join(t Tier, n int) {
	before := m.ends[m.faster(t)]
	copy(m.ends[t], before)
	m.heads = sized(m.heads, n)
	m.peers = sized(m.peers, len(before))
	for slot, w := range m.dir.owners {
		if w == nil || w.blocks[t].Load() == 0 || int(before[slot]) == n {
			continue
		}
		at := before[slot]
		m.peers[slot], m.heads[at] = m.heads[at], int32(slot)
		m.waiting++
	}
	clear(m.live)
	m.n, m.last = 0, 0
}

// joinAt makes the owners queued at block i live.
func (m *Matches) joinAt(i int) {
	for slot := m.heads[i]; slot >= 0; slot = m.peers[slot] {
		m.live[slot/64] |= 1 << (slot % 64)
		m.n++
		m.last = 0
		m.waiting--
	}
}

// joining reports whether owners are queued at blocks in [at, to).
func (m *Matches) joining(at, to int) bool {
	for _, slot := range m.heads[at:to] {
		if slot >= 0 {
			return true
		}
	}
	return false
}

// begin makes live the owners of word.
func (m *Matches) begin(g *generation, word uint64) {
	clear(m.live)
	m.n, m.last = 0, word&^bitMet
	if word&bitOver == 0 {
		for w := word &^ bitFlags; w != 0; w >>= laneBits {
			m.keep(int(w&laneMask) - 1)
		}
		return
	}
	set := g.bitset(word)
	for k := range min(len(set), len(m.live)) {
		m.live[k] = atomic.LoadUint64(&set[k])
		m.n += bits.OnesCount64(m.live[k])
	}
	m.trim()
}

// keep adds a slot to live, unless its owner is newer than the directory.
func (m *Matches) keep(slot int) {
	if slot < len(m.dir.owners) {
		m.live[slot/64] |= 1 << (slot % 64)
		m.n++
	}
}

// trim takes owners newer than the directory out of live.
func (m *Matches) trim() {
	over := len(m.dir.owners) % 64
	if over == 0 || len(m.live) == 0 {
		return
	}
	top := &m.live[len(m.live)-1]
	m.n -= bits.OnesCount64(*top >> over)
	*top &= 1<<over - 1
}

// restrict ends the runs of live owners without block i.
func (m *Matches) restrict(t Tier, g *generation, word uint64, i int) {
	if word&bitOver != 0 {
		m.last = 0
		live, set := m.live, g.bitset(word)
		for k := range live {
			gone := live[k]
			if k < len(set) {
				gone &^= atomic.LoadUint64(&set[k])
			}
			if gone != 0 {
				m.end(t, k, gone, i)
			}
		}
		return
	}
	m.last = word &^ bitMet
	for k, live := range m.live {
		if live == 0 {
			continue
		}
		var held uint64
		for w := word &^ bitFlags; w != 0; w >>= laneBits {
			if slot := int(w&laneMask) - 1; slot/64 == k {
				held |= 1 << (slot % 64)
			}
		}
		if gone := live &^ held; gone != 0 {
			m.end(t, k, gone, i)
		}
	}
}

// end ends at block i the runs of the owners of gone in word k of live.
func (m *Matches) end(t Tier, k int, gone uint64, i int) {
	m.live[k] &^= gone
	if t == Device && i > m.deepest {
		m.deepest = i
	}
	m.n -= bits.OnesCount64(gone)
	ends := m.ends[t][k*64:]
	// Many that end at once are neighbours: handle runs of ones together.
	for gone != 0 {
		skip := bits.TrailingZeros64(gone)
		gone >>= skip
		row := bits.TrailingZeros64(^gone)
		gone >>= row
		for j := range ends[skip : skip+row] {
			ends[skip+j] = uint32(i)
		}
		ends = ends[skip+row:]
	}
}

// finish ends the remaining runs at the end of the prompt.
func (m *Matches) finish(t Tier, n int) {
	for k, live := range m.live {
		if live != 0 {
			m.end(t, k, live, n)
		}
	}
}

// sized returns s with n elements, all of them -1.
func sized(s []int32, n int) []int32 {
	if cap(s) < n {
		s = make([]int32, n)
	}
	s = s[:n]
	for i := range s {
		s[i] = -1
	}
	return s
}
