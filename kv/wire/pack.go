package wire

import "time"

// Packer cuts events into batches of a bounded size, encoded. An event that is too big is cut between its blocks; only a
// single block that is too big by itself makes a batch that is too big.
type Packer struct {
	limit int // bytes
	ts    float64
	rank  int
	out   [][]byte

	events []Event
	size   int // upper bound of the bytes of events
}

// NewPacker returns a Packer of batches of at most limit bytes that a rank sends at ts.
func NewPacker(limit int, ts time.Time, rank int) *Packer {
	return &Packer{limit: limit, ts: float64(ts.UnixMicro()) / 1e6, rank: rank}
}

// Batches returns what was added, as batches that [DecodeBatch] reads.
func (p *Packer) Batches() [][]byte {
	p.flush()
	return p.out
}

// Add packs e, and skips an event without blocks that clears nothing.
func (p *Packer) Add(e Event) {
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
			p.Add(e.Blocks(0, k))
			p.flush()
			e = e.Blocks(k, n)
		}
	}
}

func (p *Packer) flush() {
	if len(p.events) == 0 {
		return
	}
	p.out = append(p.out, AppendBatch(make([]byte, 0, p.size+batchHead), &Batch{TS: p.ts, Rank: p.rank, Events: p.events}))
	p.events, p.size = p.events[:0], 0
}
