package replica

import (
	"encoding/binary"
	"math"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// PoolBound holds bindings of a pool's sessions. Like a sent prompt it may be lost.
type PoolBound struct {
	Model    string
	Role     pools.Role
	Clock    int64 // see [load.Sessions.Delta]
	Bindings []load.SessionBinding
}

func appendBound(b []byte, p *PoolBound) []byte {
	b, at := begin(b, itemBound)
	b = appendSlot(b, &Slot{Model: p.Model, Role: p.Role})
	b = appendMillis(b, p.Clock)
	for i := range p.Bindings {
		s := &p.Bindings[i]
		b = binary.LittleEndian.AppendUint64(b, s.Session)
		b = binary.LittleEndian.AppendUint64(b, s.Worker)
		b = binary.AppendUvarint(b, uint64(max(0, s.Rank)))
		b = binary.AppendUvarint(b, uint64(s.Moves))
		b = appendMillis(appendMillis(b, s.Born), s.Idle)
	}
	return end(b, at)
}

func appendMillis(b []byte, n int64) []byte {
	return binary.AppendUvarint(b, uint64(max(0, min(n, load.MaxSessionMillis))))
}

func (r *reader) bound() PoolBound {
	slot := r.slot()
	p := PoolBound{Model: slot.Model, Role: slot.Role, Clock: r.millis()}
	for len(r.b) > 0 && !r.bad {
		p.Bindings = append(p.Bindings, load.SessionBinding{
			Session: r.uint64(), Worker: r.uint64(), Rank: int32(r.uvarint(math.MaxInt32)), Moves: uint32(r.uvarint(math.MaxInt32)),
			Born: r.millis(), Idle: r.millis(),
		})
	}
	return p
}

func (r *reader) millis() int64 { return int64(r.uvarint(load.MaxSessionMillis)) }
