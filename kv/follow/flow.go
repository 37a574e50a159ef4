package follow

import (
	"cmp"
	"slices"
)

// verdict is a [flow]'s decision on a message.
type verdict uint8

const (
	apply    verdict = iota // the next one, or one that clears everything
	stale                   // in the view already, or of an ended epoch
	gap                     // earlier messages are missing: hold it and request them
	newEpoch                // another process: empty the view and observe the message again
)

func (v verdict) String() string { return [...]string{"apply", "stale", "gap", "new epoch"}[v] }

// message is one numbered batch, still encoded.
type message struct {
	seq     uint64
	payload []byte
}

// Limits of the messages held while a snapshot is awaited.
const (
	maxHeld      = 4096
	maxHeldBytes = 16 << 20
	keptEpochs   = 4
)

// flow tracks the numbers of one source and decides which message to apply. The view is always at (epoch, seq): the
// publisher's cache after that message, or empty at 0. It is a core. The zero flow is at epoch 0, which no publisher
// uses.
type flow struct {
	epoch, seq uint64
	reported   uint64    // highest number used by the publisher in this epoch, as far as received
	held       []message // of this epoch, waiting for earlier ones: ascending, unique, all above seq+1
	heldBytes  int
	over       [keptEpochs]uint64 // ended epochs, as a ring
	last       int
}

// behind reports whether messages are missing.
func (f *flow) behind() bool { return f.reported > f.seq }

// missing returns the first missing number, and the last before the held ones.
func (f *flow) missing() (from, until uint64) {
	if len(f.held) > 0 {
		return f.seq + 1, f.held[0].seq - 1
	}
	return f.seq + 1, f.reported
}

// observe judges a message, and advances if it is to be applied.
func (f *flow) observe(epoch, seq uint64, clears bool) verdict {
	if v := f.judge(epoch, seq); v != apply {
		return v
	}
	if seq != f.seq+1 && !clears {
		return gap
	}
	f.move(seq)
	return apply
}

// beacon judges a heartbeat with the last number used: gap when the view is behind it, else stale.
func (f *flow) beacon(epoch, seq uint64) verdict {
	if v := f.judge(epoch, seq); v != apply {
		return v
	}
	return gap
}

// hold keeps a message judged gap. Beyond the limit the oldest are dropped; they are a gap again after a snapshot.
func (f *flow) hold(seq uint64, payload []byte) {
	at, found := slices.BinarySearchFunc(f.held, seq, func(h message, seq uint64) int { return cmp.Compare(h.seq, seq) })
	if found {
		return
	}
	f.held = slices.Insert(f.held, at, message{seq, payload})
	f.heldBytes += len(payload)
	for len(f.held) > maxHeld || f.heldBytes > maxHeldBytes && len(f.held) > 1 {
		f.drop(1)
	}
}

// next returns the held message that is next, if any, and advances to it.
func (f *flow) next() (payload []byte, ok bool) {
	if len(f.held) == 0 || f.held[0].seq != f.seq+1 {
		return nil, false
	}
	payload = f.held[0].payload
	f.drop(1)
	f.seq++
	return payload, true
}

// skip gives up what is missing before the first held message, or up to the highest reported number if none is held.
func (f *flow) skip() {
	_, until := f.missing()
	f.seq = max(f.seq, until)
}

// horizon is a flow's knowledge of its publisher at the time of a request.
type horizon struct{ epoch, reported uint64 }

func (f *flow) horizon() horizon { return horizon{f.epoch, f.reported} }

// restore reports whether a snapshot of (epoch, seq) is to replace the view, and if so advances there. asked is the
// horizon of the request: a snapshot is authoritative and may move the view back, unless another epoch began since.
func (f *flow) restore(asked horizon, epoch, seq uint64) bool {
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

// ends records that last was the publisher's number at the time of a request, and reports whether a higher one had
// arrived before, from another process. Held messages are dropped then.
func (f *flow) ends(asked horizon, last uint64) bool {
	if asked.epoch != f.epoch || last >= asked.reported {
		return false
	}
	f.held, f.heldBytes, f.reported = nil, 0, last
	return true
}

// judge returns apply for a number of this epoch that is not in the view, and records it.
func (f *flow) judge(epoch, seq uint64) verdict {
	switch {
	case epoch == 0:
		return stale
	case epoch == f.epoch:
	case slices.Contains(f.over[:], epoch):
		return stale
	default:
		f.begin(epoch)
		f.reported = seq
		return newEpoch
	}
	if seq <= f.seq {
		return stale
	}
	f.reported = max(f.reported, seq)
	return apply
}

// forget drops held messages as if they had not arrived.
func (f *flow) forget() { f.held, f.heldBytes, f.reported = nil, 0, f.seq }

func (f *flow) begin(epoch uint64) {
	if f.epoch != 0 {
		f.over[f.last] = f.epoch
		f.last = (f.last + 1) % keptEpochs
	}
	for i, e := range f.over {
		if e == epoch { // the epoch has not ended after all
			f.over[i] = 0
		}
	}
	f.epoch, f.seq, f.reported = epoch, 0, 0
	f.held, f.heldBytes = nil, 0
}

func (f *flow) move(seq uint64) {
	f.seq = seq
	f.reported = max(f.reported, seq)
	n := 0
	for n < len(f.held) && f.held[n].seq <= seq {
		n++
	}
	f.drop(n)
}

func (f *flow) drop(n int) {
	for i := range n {
		f.heldBytes -= len(f.held[i].payload)
	}
	clear(f.held[:n])
	f.held = f.held[n:]
	if len(f.held) == 0 {
		f.held = nil
	}
}
