package replica

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/affinity"
	"github.com/tandem-pd/tandem/router/load"
)

// Own makes this gateway's messages: it knows what the gateway has said of its shares.
type Own struct {
	name   string
	epoch  uint64
	seq    uint64
	said   map[Slot]load.Share // those that are not empty
	digest uint64              // of said
	booked uint64
	next   Message     // a Say that is being collected
	clocks []PoolBound // of the next beat
	buf    []byte

	heads   []Head // as they were said last
	headsAt time.Time
	headSeq uint64
}

// Epoch numbers a process that began at a time: later ones of its name have higher numbers, unless a clock is set back.
func Epoch(began time.Time, pid int) uint64 {
	return uint64(began.UnixMilli())<<16 | uint64(pid&0xffff)
}

// NewOwn returns the shares, none yet, of a gateway. Its name must be its own among those of the group, and epoch higher than those
// of its earlier processes.
func NewOwn(name string, epoch uint64) *Own {
	return &Own{name: name, epoch: epoch, said: map[Slot]load.Share{}}
}

// Name is the gateway's.
func (o *Own) Name() string { return o.name }

// Booked counts bookings that were made.
func (o *Own) Booked(n int) { o.booked += uint64(n) }

// Set puts a share, as it now is, into the next message, unless it is as it was said last.
func (o *Own) Set(slot Slot, s load.Share) {
	was := o.said[slot]
	if was.Account == s.Account && was.Turn == s.Turn {
		return
	}
	o.digest ^= mix(&slot, &was.Account) ^ mix(&slot, &s.Account)
	if s.Account == (load.Account{}) {
		delete(o.said, slot)
	} else {
		o.said[slot] = s
	}
	o.next.Shares = append(o.next.Shares, SlotShare{slot, s})
}

// Sent puts a prompt that was sent into the next message.
func (o *Own) Sent(slot Slot, text bool, hashes []uint64) {
	o.next.Sends = append(o.next.Sends, SlotSent{slot, text, hashes})
}

// Opened puts into the next message that a worker's circuit has opened here.
func (o *Own) Opened(slot Slot) {
	if len(o.next.Opened) < maxShares {
		o.next.Opened = append(o.next.Opened, slot)
	}
}

// Bound puts bindings of a pool's sessions into the next message, [affinity.Batch] at the most.
func (o *Own) Bound(model string, role pools.Role, clock int64, all []affinity.Binding) {
	o.next.Bound = append(o.next.Bound, PoolBound{model, role, clock, slices.Clone(all)})
}

// Clock puts the clock of a pool's bindings into the next beat, if it is not 0.
func (o *Own) Clock(model string, role pools.Role, clock int64) {
	if clock != 0 {
		o.clocks = append(o.clocks, PoolBound{Model: model, Role: role, Clock: clock})
	}
}

// A message is bounded: 1 MiB, which NATS carries, has room for so many shares of the longest names, so many prompts, and
// so many pools' bindings of sessions.
const (
	maxShares = 200
	maxSends  = 12
	maxBound  = 8
)

// Say returns a message of what has changed since the last one, or some of it; nil when nothing has. The memory is Own's, until
// the next call.
func (o *Own) Say() []byte {
	shares, sends := min(len(o.next.Shares), maxShares), min(len(o.next.Sends), maxSends)
	bound := min(len(o.next.Bound), maxBound)
	if shares+sends+len(o.next.Opened)+bound == 0 {
		return nil
	}
	o.seq++
	m := Message{Kind: Say, From: o.name, Epoch: o.epoch, Seq: o.seq, Shares: o.next.Shares[:shares], Sends: o.next.Sends[:sends], Opened: o.next.Opened, Bound: o.next.Bound[:bound]}
	o.buf = m.Append(o.buf[:0])
	o.next.Shares = slices.Delete(o.next.Shares, 0, shares)
	o.next.Sends = slices.Delete(o.next.Sends, 0, sends)
	o.next.Opened = o.next.Opened[:0]
	o.next.Bound = slices.Delete(o.next.Bound, 0, bound)
	return o.buf
}

// Beat returns a beat. All that has changed must have been said. addr is HOST:PORT where the gateway takes requests, stamp the
// process's clock, and echoes are [Peers.Echoes].
func (o *Own) Beat(addr string, stamp time.Duration, echoes []Echo) []byte {
	m := Message{Kind: Beat, From: o.name, Epoch: o.epoch, Seq: o.seq, Digest: o.digest, Addr: addr, Booked: o.booked, Stamp: stamp, Echoes: echoes, Bound: o.clocks}
	o.clocks = o.clocks[:0]
	return m.Append(nil)
}

// Bye returns the last message.
func (o *Own) Bye() []byte {
	m := Message{Kind: Bye, From: o.name, Epoch: o.epoch, Seq: o.seq}
	return m.Append(nil)
}

// Page returns the shares of the slots that come after a given one; of a Slot's zero value, of all. Where they are too many for a message
// it has the first of them, and its last one is the slot to ask from next. All that has changed must have been said.
func (o *Own) Page(after Slot) []byte {
	slots := slices.SortedFunc(maps.Keys(o.said), compare)
	from, found := slices.BinarySearchFunc(slots, after, compare)
	if found {
		from++
	}
	slots = slots[from:]
	m := Message{Kind: Page, From: o.name, Epoch: o.epoch, Seq: o.seq, After: after, Last: len(slots) <= maxShares}
	for _, slot := range slots[:min(len(slots), maxShares)] {
		m.Shares = append(m.Shares, SlotShare{slot, o.said[slot]})
	}
	return m.Append(nil)
}

// Ask is the request for a page.
func Ask(after Slot) []byte { return appendSlot([]byte{version}, &after) }

// ReadAsk decodes what Ask made.
func ReadAsk(b []byte) (after Slot, err error) {
	r := reader{b: b, names: map[string]string{}}
	if r.byte() != version {
		return Slot{}, errMessage
	}
	if after = r.slot(); r.bad {
		return Slot{}, errMessage
	}
	return after, nil
}

// compare orders slots.
func compare(a, b Slot) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
}

// mix is a share's part of a digest: 0 of an empty one.
func mix(slot *Slot, a *load.Account) uint64 {
	if *a == (load.Account{}) {
		return 0
	}
	var b [40]byte
	for i, n := range [...]int{slot.Rank, a.ActiveBlocks, a.PrefillTokens, a.Requests, a.Faded} {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
	}
	return xxh3.HashSeed(b[:], xxh3.HashString(slot.Model)+3*xxh3.HashString(string(slot.Role))+5*xxh3.HashString(slot.Worker))
}
