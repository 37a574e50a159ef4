package events

// packer cuts events into batches of a bounded size. An event that is too big is cut between its blocks; only a
// single block that is too big by itself makes a batch that is too big.
type packer struct {
	limit int // bytes
	ts    float64
	rank  int
	out   [][]byte // the batches, encoded

	events []Event
	size   int // upper bound of the bytes of events
}

// add packs e; one of no blocks that clears nothing says nothing and is left out.
func (p *packer) add(e Event) {
	if len(e.Hashes) == 0 && e.Kind != Cleared {
		return
	}
	for {
		size := sizeOf(&e)
		switch room := p.limit - batchHead - p.size; {
		case size <= room:
			p.events = append(p.events, e)
			p.size += size
			return
		case len(p.events) > 0:
			p.flush()
		case len(e.Hashes) <= 1:
			p.events = append(p.events, e)
			p.flush()
			return
		default: // it is too big for a batch of its own
			n := len(e.Hashes)
			k := min(max(1, n*room/size), n-1)
			p.add(e.blocks(0, k))
			p.flush()
			e = e.blocks(k, n)
		}
	}
}

func (p *packer) flush() {
	if len(p.events) == 0 {
		return
	}
	p.out = append(p.out, AppendBatch(make([]byte, 0, p.size+batchHead), &Batch{TS: p.ts, Rank: p.rank, Events: p.events}))
	p.events, p.size = p.events[:0], 0
}
