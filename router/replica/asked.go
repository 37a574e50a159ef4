package replica

// Asked asks the gateway Owner whether a slot's worker, of which it has the last room to give, has room for the share that
// the message says of it. Owner answers with an [Answer].
type Asked struct {
	Slot
	Owner string
}

// reply answers a question that is for this gateway, now that the share of it is in the books: what the peer has booked
// there counts, the booking in question included, and more is there than room or not. Of two peers that ask for the same
// room the first to be heard gets it.
func (p *Peers) reply(from *peer, m *Message, do []Effect) []Effect {
	if m.Asked.Owner != p.name || !p.admits(m.Asked.Slot) {
		return do
	}
	granted := !p.books.Overbooked(m.Asked.Slot)
	return append(do, Effect{Do: Reply, Peer: from.name, Say: Answer{From: p.name, Epoch: m.Epoch, Seq: m.Seq, Granted: granted}})
}
