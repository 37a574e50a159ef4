package replica

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/queue"
)

const (
	// headApart is the minimum time between two messages with heads.
	headApart = 5 * time.Millisecond
	// headAgain is how often unchanged heads are repeated. Heads count for 50 ms, so one message may be lost and the
	// next be 10 ms late.
	headAgain = 20 * time.Millisecond
	// maxHeads bounds the heads of one gateway. The highest strict priorities are sent.
	maxHeads = 64
)

// Heads returns a message with all heads of this gateway's queues, by model, nil when none is due. again is when the
// next is due, zero without a deadline. The memory is valid until the next call.
func (o *Local) Heads(queues map[string][]queue.Head, now time.Time) (data []byte, again time.Time) {
	var heads []ModelHead
	for model, of := range queues {
		for _, h := range of {
			heads = append(heads, ModelHead{model, h})
		}
	}
	slices.SortFunc(heads, func(a, b ModelHead) int {
		return cmp.Or(-cmp.Compare(a.Strict, b.Strict), cmp.Compare(a.Model, b.Model), cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Key, b.Key))
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
	m := Message{Kind: natsbus.Heads, From: o.name, Epoch: o.epoch, Seq: o.headSeq, Heads: o.heads}
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
		p.head(from, m.Heads, now)
	}
}

// head passes the heads of a peer to the books, model by model, including models without heads now.
func (p *Peers) head(from *peer, heads []ModelHead, now time.Time) {
	queues := make(map[string][]queue.Head, len(heads))
	for _, model := range from.models {
		queues[model] = nil
	}
	for _, h := range heads {
		queues[h.Model] = append(queues[h.Model], h.Head)
	}
	from.models = from.models[:0]
	for _, model := range slices.Sorted(maps.Keys(queues)) {
		p.books.ApplyHeads(from.name, model, queues[model], now)
		if queues[model] != nil {
			from.models = append(from.models, model)
		}
	}
}
