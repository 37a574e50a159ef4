package replica

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Local encodes this gateway's messages and keeps what it has published.
type Local struct {
	name      string
	epoch     uint64
	seq       uint64
	published map[Slot]load.Share // non-empty shares, as last published
	digest    uint64              // of published
	booked    uint64
	next      Message     // a Delta being collected
	clocks    []PoolBound // of the next heartbeat
	buf       []byte

	heads   []ModelHead // as last published
	headsAt time.Time
	headSeq uint64
}

// Epoch numbers a process by its start: later ones of its name have higher numbers, unless the clock is set back.
func Epoch(began time.Time, pid int) uint64 {
	return uint64(began.UnixMilli())<<16 | uint64(pid&0xffff)
}

// NewLocal returns the state of a gateway without shares. The name must be unique in the group, and epoch higher than
// those of its earlier processes.
func NewLocal(name string, epoch uint64) *Local {
	return &Local{name: name, epoch: epoch, published: map[Slot]load.Share{}}
}

// Name returns the gateway's name.
func (o *Local) Name() string { return o.name }

// Booked counts bookings that were made.
func (o *Local) Booked(n int) { o.booked += uint64(n) }

// Set puts a share into the next message, unless it was published with this value.
func (o *Local) Set(slot Slot, s load.Share) {
	was := o.published[slot]
	if was.Account == s.Account && was.Line == s.Line {
		return
	}
	o.digest ^= mix(&slot, &was.Account) ^ mix(&slot, &s.Account)
	if s.Account == (load.Account{}) {
		delete(o.published, slot)
	} else {
		o.published[slot] = s
	}
	o.next.Shares = append(o.next.Shares, SlotShare{slot, s})
}

// Sent puts a sent prompt into the next message.
func (o *Local) Sent(slot Slot, text bool, hashes []uint64) {
	o.next.Sends = append(o.next.Sends, SlotSent{slot, text, hashes[:min(len(hashes), maxHashes)]})
}

// Opened puts a worker's opened circuit into the next message.
func (o *Local) Opened(slot Slot) {
	if len(o.next.Opened) < maxShares {
		o.next.Opened = append(o.next.Opened, slot)
	}
}

// Bound puts at most [load.SessionBatch] bindings of a pool's sessions into the next message.
func (o *Local) Bound(model string, role pools.Role, clock int64, all []load.SessionBinding) {
	o.next.Bound = append(o.next.Bound, PoolBound{model, role, clock, slices.Clone(all)})
}

// Clock puts the clock of a pool's bindings into the next heartbeat, unless it is 0.
func (o *Local) Clock(model string, role pools.Role, clock int64) {
	if clock != 0 && len(o.clocks) < maxPools {
		o.clocks = append(o.clocks, PoolBound{Model: model, Role: role, Clock: clock})
	}
}

// Bounds of a message, as body has them. The longest names fit NATS's limit of 1 MiB.
const (
	maxShares = 200
	maxSends  = 12
	maxBound  = 8
	maxHashes = 4096 // of the beginning of a sent prompt
)

// Delta returns a message of what changed since the last one, or part of it, and nil when nothing did. The memory is
// valid until the next call.
func (o *Local) Delta() []byte {
	shares, sends := min(len(o.next.Shares), maxShares), min(len(o.next.Sends), maxSends)
	bound := min(len(o.next.Bound), maxBound)
	if shares+sends+len(o.next.Opened)+bound == 0 {
		return nil
	}
	o.seq++
	m := Message{
		Kind: natsbus.Delta, From: o.name, Epoch: o.epoch, Seq: o.seq, Shares: o.next.Shares[:shares], Sends: o.next.Sends[:sends],
		Opened: o.next.Opened, Bound: o.next.Bound[:bound],
	}
	o.buf = m.Append(o.buf[:0])
	o.next.Shares = slices.Delete(o.next.Shares, 0, shares)
	o.next.Sends = slices.Delete(o.next.Sends, 0, sends)
	o.next.Opened = o.next.Opened[:0]
	o.next.Bound = slices.Delete(o.next.Bound, 0, bound)
	return o.buf
}

// Heartbeat returns a heartbeat. All deltas must have been published. addr is the HOST:PORT that takes requests, stamp
// the process's clock, and echoes are [Peers.Echoes].
func (o *Local) Heartbeat(addr string, stamp time.Duration, echoes []Echo) []byte {
	m := Message{
		Kind: natsbus.Heartbeat, From: o.name, Epoch: o.epoch, Seq: o.seq, Digest: o.digest, Addr: addr, Booked: o.booked,
		Stamp: stamp, Echoes: echoes, Bound: o.clocks,
	}
	o.clocks = o.clocks[:0]
	return m.Append(nil)
}

// Leave returns the last message.
func (o *Local) Leave() []byte {
	m := Message{Kind: natsbus.Leave, From: o.name, Epoch: o.epoch, Seq: o.seq}
	return m.Append(nil)
}

// Page returns the shares after a slot, or all after the zero slot. A message that is full ends with the slot to
// continue from. All deltas must have been published.
func (o *Local) Page(after Slot) []byte {
	slots := slices.SortedFunc(maps.Keys(o.published), compare)
	from, found := slices.BinarySearchFunc(slots, after, compare)
	if found {
		from++
	}
	slots = slots[from:]
	m := Message{Kind: natsbus.Page, From: o.name, Epoch: o.epoch, Seq: o.seq, After: after, Last: len(slots) <= maxShares}
	for _, slot := range slots[:min(len(slots), maxShares)] {
		m.Shares = append(m.Shares, SlotShare{slot, o.published[slot]})
	}
	return m.Append(nil)
}

// PageRequest encodes the request for a page.
func (o *Local) PageRequest(after Slot) []byte {
	data, _ := after.MarshalMsg(natsbus.Seal(nil, natsbus.PageRequest, o.name)) // roleNumber does not fail
	return data
}

func readPageRequest(data []byte) (after Slot, err error) {
	e, body, err := natsbus.Open(data)
	if err != nil {
		return Slot{}, err
	}
	if err := natsbus.Body(body, &after); err != nil || e.Kind != natsbus.PageRequest || !after.valid() {
		return Slot{}, errMessage
	}
	return after, nil
}

func compare(a, b Slot) int {
	return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Role, b.Role), cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Rank, b.Rank))
}

// mix returns a share's contribution to a digest, 0 if it is empty.
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
