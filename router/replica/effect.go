package replica

import "time"

// happened is an effect that says what has happened to a peer.
func happened(what Do, p *peer, now time.Time) Effect {
	e := Effect{Do: what, Peer: p.name, Age: now.Sub(p.heard)}
	for _, w := range p.shares {
		e.Requests += w.Requests
		e.ActiveBlocks += w.ActiveBlocks
	}
	return e
}

// once appends an effect that others can cause at will, at most once a minute: latest is when it was last.
func once(latest *time.Time, e Effect, now time.Time, do []Effect) []Effect {
	if now.Sub(*latest) < time.Minute {
		return do
	}
	*latest = now
	return append(do, e)
}

// Effect is what the shell is to do, or to log.
type Effect struct {
	Do    Do
	Peer  string
	Addr  string // Dial
	After Slot   // AskPage
	// Of Quiet, Back, Died, Expired and Left: how old the peer's latest word was, and what it had booked.
	Age                    time.Duration
	Requests, ActiveBlocks int
}

// Do is the kind of an effect.
type Do uint8

// The effects. The last seven only say what has happened.
const (
	AskPage  Do = iota + 1 // ask the peer for the page after a slot, and have Hear take the answer
	Dial                   // connect to its address, and have Dialled take the answer
	Greet                  // a gateway is new, and should hear of this one at once: send a beat
	SameName               // another process sends under this gateway's name, and the others take the later one for it
	Misnamed               // the peer sends under another gateway's name
	Joined
	Quiet // it has said nothing for a second
	Back  // it speaks again
	Died
	Expired
	Left
)
