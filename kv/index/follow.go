package index

// match finds the runs on tier t. An owner whose gap appeared during a jump is followed block by block the next time;
// the third time all are.
func (m *Matches) match(tab *table, gaps *gaps, t Tier, hashes []uint64) {
	for try := range 3 {
		m.look(gaps, try > 0)
		m.follow(tab, t, hashes, try < 2)
		if !m.jumped || m.unmoved(gaps) {
			return
		}
	}
}

// look records which owners have gaps; again includes those whose count changed since the last look.
func (m *Matches) look(gaps *gaps, again bool) {
	for k := range m.live {
		moved := gaps.moved[k].Load()
		if open := gaps.open[k].Load(); !again || m.moved[k] == moved && m.open[k] != all {
			m.open[k] = open
		} else {
			m.open[k] = all
		}
		m.moved[k] = moved
	}
}

const all = ^uint64(0)

// unmoved reports whether no owner without gaps got one since the last look.
func (m *Matches) unmoved(gaps *gaps) bool {
	for k, moved := range m.moved {
		if m.open[k] != all && gaps.moved[k].Load() != moved {
			return false
		}
	}
	return true
}

// follow finds the runs on tier t. On Device all owners of the first block begin one; on slower tiers an owner's run
// begins where its faster one ended. Each further block ends the runs of owners without it.
func (m *Matches) follow(tab *table, t Tier, hashes []uint64, jump bool) {
	m.jumped, m.waiting = false, 0
	m.fill(t)
	at := 0
	if t == Device {
		if len(hashes) == 0 {
			return
		}
		if jump {
			tab.ahead(hashes)
		}
		m.begin(tab.load(hashes[0]))
		at = 1
	} else {
		m.join(t, len(hashes))
	}
	for at < len(hashes) {
		if m.n == 0 {
			if m.waiting == 0 {
				return
			}
			for m.heads[at] < 0 {
				at++
			}
		}
		if !jump || m.gapped() {
			to := min(at+batch, len(hashes))
			m.walk(tab, t, hashes, at, to)
			at = to
		} else {
			at = m.leap(tab, t, hashes, at)
		}
	}
	m.finish(t, len(hashes))
}

// leap follows owners without gaps in batches from at, and returns its end.
func (m *Matches) leap(tab *table, t Tier, hashes []uint64, at int) int {
	var gens [jumps]*generation
	var slots [jumps]int
	var words [jumps]uint64
	n := min(jumps, (len(hashes)-at+batch-1)/batch)
	for i := range n {
		h := hashes[min(at+(i+1)*batch, len(hashes))-1]
		gens[i] = tab.generation(h)
		slots[i], words[i] = gens[i].touch(h)
	}
	for i := range n {
		to := min(at+batch, len(hashes))
		joining := m.waiting > 0 && m.joining(at, to)
		if !joining {
			word := gens[i].probe(hashes[to-1], slots[i], words[i])
			if m.kept(gens[i], word) || m.covers(gens[i], word) {
				m.jumped = true
				at = to
				continue
			}
		}
		m.walk(tab, t, hashes, at, to)
		if at = to; m.n == 0 || joining {
			break // those that have joined may have gaps
		}
	}
	return at
}

// walk visits the blocks from at until before to, at most batch of them, one by one.
func (m *Matches) walk(tab *table, t Tier, hashes []uint64, at, to int) {
	var gens [batch]*generation
	var slots [batch]int
	var words [batch]uint64
	part := hashes[at:to]
	for i, h := range part {
		gens[i] = tab.generation(h)
		slots[i], words[i] = gens[i].touch(h)
	}
	for i, h := range part {
		if m.waiting > 0 {
			m.joinAt(at + i)
		}
		if m.n == 0 {
			if m.waiting == 0 {
				return
			}
			continue
		}
		word := gens[i].probe(h, slots[i], words[i])
		if !m.kept(gens[i], word) {
			m.restrict(t, gens[i], word, at+i)
		}
	}
}
