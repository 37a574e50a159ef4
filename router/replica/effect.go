package replica

// Effect is what the shell is to do, or to log.
type Effect struct {
	Do    Do
	Peer  string
	Addr  string // Dial
	After Slot   // AskPage
	Say   Answer // Reply
}

// Do is the kind of an effect.
type Do uint8

// The effects. The last four only say what has happened.
const (
	AskPage Do = iota + 1 // ask the peer for the page after a slot, and have Hear take the answer
	Dial                  // connect to its address, and have Dialled take the answer
	Greet                 // a gateway is new, and should hear of this one at once: send a beat
	Stop                  // another, later process has this gateway's name: share nothing any more
	Reply                 // send the peer an answer
	Joined
	Died
	Expired
	Left
)
