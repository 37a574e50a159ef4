package replica

import "time"

// ended is the latest process of a name that has ended, and when that was.
type ended struct {
	epoch uint64
	at    time.Time
}

// bury notes that a process has said goodbye, or that a later one has its name. One whose address has only refused a connection may speak
// again: a firewall may have been it that refused.
func (p *Peers) bury(name string, epoch uint64, now time.Time) {
	if len(p.gone) >= maxGone {
		clear(p.gone)
	}
	p.gone[name] = ended{epoch, now}
}

// drop ends a peer's process and its shares.
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

// renumber begins the numbers again where what was received as the peer's has numbers that it has not reached: all its shares are
// requested again, and take the place of those.
func (from *peer) renumber(seq uint64) {
	clear(from.ahead)
	from.seq, from.top, from.whole, from.gap = 0, seq, false, time.Time{}
	for slot, w := range from.shares {
		w.seq = 0
		from.shares[slot] = w
	}
}
