package replica

import "time"

func happened(what Do, p *peer, now time.Time) Effect {
	e := Effect{Do: what, Peer: p.name, Age: now.Sub(p.lastSeen)}
	for _, w := range p.shares {
		e.Requests += w.Requests
		e.ActiveBlocks += w.ActiveBlocks
	}
	return e
}

// once appends an effect that others can cause at will, at most once a minute. latest is the time of the last one.
func once(latest *time.Time, e Effect, now time.Time, do []Effect) []Effect {
	if now.Sub(*latest) < time.Minute {
		return do
	}
	*latest = now
	return append(do, e)
}

// Effect is an action or a log entry for the shell.
type Effect struct {
	Do    Do
	Peer  string
	Addr  string // Dial
	After Slot   // RequestPage
	// Of Quiet, Back, Died, Expired and Left: the time since the peer's last message, and its bookings.
	Age                    time.Duration
	Requests, ActiveBlocks int
}

// Do is the kind of an effect.
type Do uint8

// The effects. The last eight only report events.
const (
	RequestPage  Do = iota + 1 // request the page after a slot from the peer; Receive applies the answer
	Dial                       // connect to its address and pass the verdict to Dialled
	Welcome                    // a gateway is new: send a heartbeat at once
	SameName                   // another process uses this gateway's name; the others count the later one
	Misnamed                   // the peer uses another gateway's name
	OtherVersion               // the peer's messages have another version; they are ignored
	Joined
	Quiet // no message for a second
	Back  // messages arrive again
	Died
	Expired
	Left
)
