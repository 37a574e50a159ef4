package replica

import "time"

// ended is the latest process of a name that ended, and the time.
type ended struct {
	epoch uint64
	at    time.Time
}

// bury records that a process left or was replaced by a later one of its name. A process whose address refused a
// connection may come back: a firewall may have refused it.
func (p *Peers) bury(name string, epoch uint64, now time.Time) {
	if len(p.gone) >= maxGone {
		clear(p.gone)
	}
	p.gone[name] = ended{epoch, now}
}

// drop removes a peer's process and its shares.
func (p *Peers) drop(from *peer, why Do, now time.Time, do []Effect) []Effect {
	do = append(do, happened(why, from, now))
	for slot := range from.shares {
		p.pending = append(p.pending, SlotShare{Slot: slot})
	}
	p.enter(from, now)
	p.head(from, nil, now)
	delete(p.peers, from.name)
	switch why {
	case Died:
		p.counts.Died++
	case Expired:
		p.counts.Expired++
	case Left:
		p.counts.Left++
	}
	return do
}

// renumber resets the sequence numbers when received ones are higher than the peer's own. All shares are requested
// again.
func (from *peer) renumber(seq uint64) {
	clear(from.ahead)
	from.seq, from.top, from.whole, from.gap = 0, seq, false, time.Time{}
	for slot, w := range from.shares {
		w.seq = 0
		from.shares[slot] = w
	}
}
