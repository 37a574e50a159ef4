package replica

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"time"
)

// Head is the first waiting request of a lane with a strict priority above 0. Other gateways leave room for it.
type Head struct {
	Model  string
	Lane   uint64 // hash of the lane's name; 0: takes any worker
	Retry  bool   // a retry, which goes before all others
	Strict uint32 // its strict priority
	Key    uint64 // identifies the request in its queue
	Tokens int    // prompt tokens
}

const (
	// headApart is the minimum time between two messages with heads.
	headApart = 5 * time.Millisecond
	// headAgain is how often unchanged heads are repeated. Heads count for 50 ms, so one message may be lost and the
	// next be 10 ms late.
	headAgain = 20 * time.Millisecond
	// maxHeads bounds the heads of one gateway. The highest strict priorities are sent.
	maxHeads = 64
)

// Heads returns a message with all heads of this gateway's queues, nil when none is due. again is when the next is due,
// zero without a deadline. The memory is valid until the next call.
func (o *Local) Heads(heads []Head, now time.Time) (data []byte, again time.Time) {
	slices.SortFunc(heads, func(a, b Head) int {
		return cmp.Or(-cmp.Compare(a.Strict, b.Strict), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Lane, b.Lane),
			cmp.Compare(boolByte(a.Retry), boolByte(b.Retry)))
	})
	heads = heads[:min(len(heads), maxHeads)]
	if len(heads)+len(o.heads) == 0 {
		return nil, time.Time{}
	}
	due := o.headsAt.Add(headAgain)
	if !slices.Equal(heads, o.heads) {
		due = o.headsAt.Add(headApart)
	}
	if now.Before(due) {
		return nil, due
	}
	o.heads, o.headsAt = append(o.heads[:0], heads...), now
	o.headSeq++
	m := Message{Kind: Heads, From: o.name, Epoch: o.epoch, Seq: o.headSeq, Heads: o.heads}
	o.buf = m.Append(o.buf[:0])
	if len(heads) > 0 {
		again = now.Add(headAgain)
	}
	return o.buf, again
}

// heads replaces the heads of a peer's queues. It ignores an older message that arrives late.
func (p *Peers) heads(from *peer, m *Message, now time.Time) {
	if m.Seq > from.headSeq || now.Sub(from.headAt) >= silence {
		from.headSeq, from.headAt = m.Seq, now
		p.head(from, m.Heads[:min(len(m.Heads), maxHeads)], now)
	}
}

// head passes the heads of a peer to the books, model by model, including models without heads now.
func (p *Peers) head(from *peer, heads []Head, now time.Time) {
	slices.SortStableFunc(heads, func(a, b Head) int { return cmp.Compare(a.Model, b.Model) })
	models := from.models
	from.models = nil
	for len(heads) > 0 {
		model := heads[0].Model
		n := slices.IndexFunc(heads, func(h Head) bool { return h.Model != model })
		if n < 0 {
			n = len(heads)
		}
		p.books.ApplyHeads(from.name, model, heads[:n], now)
		from.models = append(from.models, model)
		heads = heads[n:]
	}
	for _, model := range models {
		if !slices.Contains(from.models, model) {
			p.books.ApplyHeads(from.name, model, nil, now)
		}
	}
}

func appendHead(b []byte, h *Head) []byte {
	b, at := begin(b, itemHead)
	b = appendName(b, h.Model)
	b = binary.LittleEndian.AppendUint64(b, h.Lane)
	b = append(b, boolByte(h.Retry))
	b = binary.AppendUvarint(b, uint64(h.Strict))
	b = binary.AppendUvarint(b, h.Key)
	return end(binary.AppendUvarint(b, uint64(max(0, h.Tokens))), at)
}

func (r *reader) head() Head {
	return Head{
		Model: r.name(), Lane: r.uint64(), Retry: r.byte() != 0, Strict: uint32(r.uvarint(math.MaxUint32)),
		Key: r.uvarint(math.MaxUint64), Tokens: int(r.uvarint(math.MaxInt32)),
	}
}
