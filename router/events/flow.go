package events

import "slices"

// Verdict is what [Flow] says of a message.
type Verdict uint8

const (
	// Apply: it is the next one, or clears everything and so needs none of those before it.
	Apply Verdict = iota
	// Stale: its effect is in the view already, or it is of an epoch that is over.
	Stale
	// Gap: messages before it are missing. It is to be held, and a snapshot asked for.
	Gap
	// NewEpoch: the publisher began anew, with nothing stored. The view is to be emptied and the message observed
	// again.
	NewEpoch
)

func (v Verdict) String() string { return [...]string{"apply", "stale", "gap", "new epoch"}[v] }

// Message is one numbered batch, still encoded.
type Message struct {
	Epoch, Seq uint64
	// Clears says that one of its events is Cleared.
	Clears  bool
	Payload []byte
}

// Limits of what a Flow holds while it waits for a snapshot.
const (
	maxHeld      = 4096
	maxHeldBytes = 16 << 20
	keptEpochs   = 4
)

// Flow follows the numbers of one source and decides which message may be applied to its view. The view always
// stands at (Epoch, Seq): it is what the publisher's cache was after that message, or empty, which is what any
// epoch's cache is at 0. It is a core: it reads no clock, and what it says it says of what it was told.
//
// The zero Flow is at epoch 0, which no publisher has: it knows of no publisher yet.
type Flow struct {
	epoch, seq uint64
	// told is the highest number that the publisher is known to have used in this epoch.
	told uint64
	// held are messages of this epoch that wait for those before them: ascending, no number twice, all above seq+1.
	held      []Message
	heldBytes int
	// over are the epochs before this one, as a ring.
	over [keptEpochs]uint64
	last int
}

// Epoch and Seq say where the view stands.
func (f *Flow) Epoch() uint64 { return f.epoch }

// Seq is the number of the last message in the view, 0 for none.
func (f *Flow) Seq() uint64 { return f.seq }

// Behind says that messages are known to be missing: nothing but a snapshot, or their late arrival, helps.
func (f *Flow) Behind() bool { return f.told > f.seq }

// Missing is the first number that is missing, and the last before those that are held: while Behind, all in between are.
func (f *Flow) Missing() (from, until uint64) {
	if len(f.held) > 0 {
		return f.seq + 1, f.held[0].Seq - 1
	}
	return f.seq + 1, f.told
}

// Held is how many messages wait.
func (f *Flow) Held() int { return len(f.held) }

// Observe judges a message and, where it is to be applied, moves on to it.
func (f *Flow) Observe(epoch, seq uint64, clears bool) Verdict {
	if v := f.judge(epoch, seq); v != Apply {
		return v
	}
	if seq != f.seq+1 && !clears {
		return Gap
	}
	f.move(seq)
	return Apply
}

// Beacon judges the announcement that seq was the last number used: Gap when the view is behind it, else Stale.
func (f *Flow) Beacon(epoch, seq uint64) Verdict {
	switch v := f.judge(epoch, seq); v {
	case Apply:
		return Gap
	default:
		return v
	}
}

// Hold keeps a message that was judged Gap. When there are too many, the oldest go: what comes after a snapshot
// that is too old for them is then a gap again.
func (f *Flow) Hold(m Message) {
	at, found := slices.BinarySearchFunc(f.held, m.Seq, func(h Message, seq uint64) int {
		switch {
		case h.Seq < seq:
			return -1
		case h.Seq > seq:
			return 1
		}
		return 0
	})
	if found {
		return
	}
	f.held = slices.Insert(f.held, at, m)
	f.heldBytes += len(m.Payload)
	for len(f.held) > maxHeld || f.heldBytes > maxHeldBytes && len(f.held) > 1 {
		f.drop(1)
	}
}

// Next gives the held message that has become the next one, if there is one, and moves on to it.
func (f *Flow) Next() (Message, bool) {
	if len(f.held) == 0 || f.held[0].Seq != f.seq+1 {
		return Message{}, false
	}
	m := f.held[0]
	f.drop(1)
	f.seq = m.Seq
	return m, true
}

// Skip gives up what is missing before the first held message, or before what was told where none is held. The held
// ones are then to be taken by Next.
func (f *Flow) Skip() {
	if len(f.held) > 0 {
		f.seq = max(f.seq, f.held[0].Seq-1)
	} else {
		f.seq = max(f.seq, f.told)
	}
}

// horizon is what a Flow had heard of its publisher when something was asked of it.
type horizon struct{ epoch, told uint64 }

func (f *Flow) horizon() horizon { return horizon{f.epoch, f.told} }

// Restore says whether a snapshot of the state at (epoch, seq) is to replace the view, and if so moves there. asked is
// what was known when the snapshot was asked for: a snapshot is the publisher's own word on which epoch it is in and on
// how far it has come, but not if another epoch began since then. It may so take the view back.
func (f *Flow) Restore(asked horizon, epoch, seq uint64) bool {
	if epoch == 0 || epoch != f.epoch && f.epoch != asked.epoch {
		return false
	}
	if epoch != f.epoch {
		f.begin(epoch)
	}
	if f.ends(asked, seq) {
		f.seq = 0
	}
	if seq < f.seq {
		return false
	}
	f.move(seq)
	return true
}

// ends takes note that last is the number the publisher had come to when it was asked, and reports whether a higher one
// had been heard before: that one was another's. Whatever is held may be, so it goes; what was true of it comes again.
func (f *Flow) ends(asked horizon, last uint64) bool {
	if asked.epoch != f.epoch || last >= asked.told {
		return false
	}
	f.held, f.heldBytes, f.told = nil, 0, last
	return true
}

// judge says Apply for a number of this epoch that is not in the view, and takes note of it.
func (f *Flow) judge(epoch, seq uint64) Verdict {
	switch {
	case epoch == 0:
		return Stale
	case epoch == f.epoch:
	case slices.Contains(f.over[:], epoch):
		return Stale
	default:
		f.begin(epoch)
		f.told = seq
		return NewEpoch
	}
	if seq <= f.seq {
		return Stale
	}
	f.told = max(f.told, seq)
	return Apply
}

// forget lets go of what is held, as though it had not been heard.
func (f *Flow) forget() { f.held, f.heldBytes, f.told = nil, 0, f.seq }

func (f *Flow) begin(epoch uint64) {
	if f.epoch != 0 {
		f.over[f.last] = f.epoch
		f.last = (f.last + 1) % keptEpochs
	}
	for i, e := range f.over {
		if e == epoch { // an epoch that was thought to be over is not
			f.over[i] = 0
		}
	}
	f.epoch, f.seq, f.told = epoch, 0, 0
	f.held, f.heldBytes = nil, 0
}

func (f *Flow) move(seq uint64) {
	f.seq = seq
	f.told = max(f.told, seq)
	n := 0
	for n < len(f.held) && f.held[n].Seq <= seq {
		n++
	}
	f.drop(n)
}

func (f *Flow) drop(n int) {
	for i := range n {
		f.heldBytes -= len(f.held[i].Payload)
	}
	clear(f.held[:n])
	f.held = f.held[n:]
	if len(f.held) == 0 {
		f.held = nil
	}
}
