package view

import (
	"encoding/binary"
)

// ring is the last messages of a publisher, encoded as they were sent, for those who missed some of them: the messages
// are a few KB where a snapshot is megabytes. It is a core.
type ring struct {
	maxMessages int
	maxBytes    int // the newest message is kept whatever it takes

	first    uint64   // number of the oldest kept
	messages [][]byte // of consecutive numbers; never changed once they are here
	bytes    int
}

// push keeps the message that follows on the last one. The oldest go when there are too many or too much of them.
func (r *ring) push(seq uint64, payload []byte) {
	if len(r.messages) == 0 {
		r.first = seq
	}
	r.messages = append(r.messages, payload)
	r.bytes += len(payload)
	for len(r.messages) > r.maxMessages || r.bytes > r.maxBytes && len(r.messages) > 1 {
		r.bytes -= len(r.messages[0])
		r.messages[0] = nil
		r.messages = r.messages[1:]
		r.first++
	}
}

// run returns the messages from number from to number until, 0 for the last one, as many as fit into limit bytes with
// their lengths, but at least one. False: not all from there on are kept, or none was ever sent that comes before from.
func (r *ring) run(from, until uint64, limit int) ([][]byte, bool) {
	next := r.first + uint64(len(r.messages))
	if from < r.first || from > next || len(r.messages) == 0 {
		return nil, false
	}
	rest := r.messages[from-r.first:]
	if until != 0 && until >= from && until < next {
		rest = rest[:until-from+1]
	}
	for i, m := range rest {
		if limit -= len(m) + binary.MaxVarintLen32; limit < 0 && i > 0 {
			return rest[:i:i], true
		}
	}
	return rest, true
}
