package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// version of the messages. A gateway hears no message of another version.
const version = 1

// Kind is what a message is for.
type Kind uint8

// The kinds of messages.
const (
	Say   Kind = iota + 1 // shares that have changed
	Beat                  // the gateway is there, and all its shares have come to this digest
	Page                  // all shares, or a part of them, for who asked
	Bye                   // the gateway has drained, and has no shares any more
	Heads                 // all heads of its queues
)

// Slot is the place of an account: a rank of a worker in a pool. The room that a pool keeps for prompts which are computed
// elsewhere has a slot without a worker.
type Slot struct {
	Model  string
	Role   pools.Role
	Worker string
	Rank   int
}

// Message is what one gateway says to the others. Which fields count, Kind says.
type Message struct {
	Kind  Kind
	From  string
	Epoch uint64 // of From's process: a later process has a higher one
	Seq   uint64 // Say, Heads: its number among those of the kind, from 1; else the number of the latest Say

	Shares []SlotShare // Say, Page
	Sends  []SlotSent  // Say
	Opened []Slot      // Say: ranks of workers whose circuit has opened at From, as they are called in the slot's role
	Heads  []Head      // Heads
	Bound  []PoolBound // Say: bindings; Beat: the clocks alone

	// Beat:
	Digest uint64        // of all shares as they were said up to Seq
	Addr   string        // HOST:PORT where it takes requests; behind https:// where over TLS
	Booked uint64        // bookings that it has made
	Stamp  time.Duration // its own clock, since its process began
	Echoes []Echo

	// Page:
	After Slot // the page has all shares of the slots after this one,
	Last  bool // to the end, or to the page's last
}

// SlotShare is a share of an account.
type SlotShare struct {
	Slot
	load.Share
}

// SlotSent is a prompt that was sent to a slot's worker: a prediction of what it has cached. Unlike a share it may be lost.
type SlotSent struct {
	Slot
	Text   bool
	Hashes []uint64
}

// maxHashes is how much of a prompt is said: its beginning.
const maxHashes = 4096

// Echo returns a beat's stamp to its gateway, which thereby knows how long words take.
type Echo struct {
	Name  string
	Stamp time.Duration // of the latest beat heard of it
	Held  time.Duration // since that was heard
}

// maxName bounds names, in bytes: of gateways, models, workers and addresses.
const maxName = 1024

// roles are the roles by their number in messages.
var roles = []pools.Role{pools.Prefill, pools.Decode, pools.Both}

// Append appends the encoded message to b. All numbers are unsigned varints, and names have their length before them.
func (m *Message) Append(b []byte) []byte {
	b = append(b, version, byte(m.Kind))
	b = appendName(b, m.From)
	b = binary.AppendUvarint(b, m.Epoch)
	b = binary.AppendUvarint(b, m.Seq)
	switch m.Kind {
	case Beat:
		b = binary.LittleEndian.AppendUint64(b, m.Digest)
		b = appendName(b, m.Addr)
		b = binary.AppendUvarint(b, m.Booked)
		b = appendDuration(b, m.Stamp)
		b = binary.AppendUvarint(b, uint64(len(m.Echoes)))
		for _, e := range m.Echoes {
			b = appendName(b, e.Name)
			b = appendDuration(b, e.Stamp)
			b = appendDuration(b, e.Held)
		}
	case Page:
		b = appendSlot(b, &m.After)
		b = append(b, boolByte(m.Last))
	}
	for i := range m.Shares {
		b = appendShare(b, &m.Shares[i])
	}
	for i := range m.Sends {
		b = appendSent(b, &m.Sends[i])
	}
	for i := range m.Opened {
		var at int
		b, at = begin(b, itemOpened)
		b = end(appendSlot(b, &m.Opened[i]), at)
	}
	for i := range m.Heads {
		b = appendHead(b, &m.Heads[i])
	}
	for i := range m.Bound {
		b = appendBound(b, &m.Bound[i])
	}
	return b
}

// The kinds of what follows a message's head, each with its length, so that what a gateway does not know it can skip.
const (
	itemShare = iota + 1
	itemSent
	itemOpened
	itemHead
	itemBound
)

// begin begins an item, whose length, in two bytes, end fills in: what is in one is bounded.
func begin(b []byte, kind byte) ([]byte, int) {
	b = append(b, kind, 0, 0)
	return b, len(b)
}

func end(b []byte, at int) []byte {
	binary.LittleEndian.PutUint16(b[at-2:], uint16(len(b)-at))
	return b
}

func appendSent(b []byte, s *SlotSent) []byte {
	b, at := begin(b, itemSent)
	b = appendSlot(b, &s.Slot)
	b = append(b, boolByte(s.Text))
	for _, h := range s.Hashes[:min(len(s.Hashes), maxHashes)] {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	return end(b, at)
}

func appendShare(b []byte, s *SlotShare) []byte {
	b, at := begin(b, itemShare)
	b = appendSlot(b, &s.Slot)
	for _, n := range [...]int{s.Requests, s.ActiveBlocks, s.PrefillTokens, s.Faded, s.Computed, s.FirstTokens} {
		b = binary.AppendUvarint(b, uint64(max(0, n)))
	}
	b = appendDuration(b, s.Left)
	return end(appendDuration(b, s.First), at)
}

func appendSlot(b []byte, s *Slot) []byte {
	role := 0
	for i, r := range roles {
		if r == s.Role {
			role = i
		}
	}
	b = append(b, byte(role))
	b = appendName(b, s.Model)
	b = appendName(b, s.Worker)
	return binary.AppendUvarint(b, uint64(max(0, s.Rank)))
}

func appendName(b []byte, name string) []byte {
	name = name[:min(len(name), maxName)]
	b = binary.AppendUvarint(b, uint64(len(name)))
	return append(b, name...)
}

// appendDuration appends d in microseconds.
func appendDuration(b []byte, d time.Duration) []byte {
	return binary.AppendUvarint(b, uint64(max(0, d/time.Microsecond)))
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// errMessage is what is wrong with every message that cannot be decoded.
var errMessage = errors.New("malformed replica message")

// reader decodes a message. After the first mistake it returns zeros.
type reader struct {
	b     []byte
	names map[string]string // those seen before, so that a name is allocated once
	bad   bool
}

// Read decodes a message into m, whose memory it uses again. names keeps the names of earlier messages.
func (m *Message) read(b []byte, names map[string]string) error {
	*m = Message{Shares: m.Shares[:0], Sends: m.Sends[:0], Opened: m.Opened[:0], Heads: m.Heads[:0], Bound: m.Bound[:0], Echoes: m.Echoes[:0]}
	r := reader{b: b, names: names}
	if v := r.byte(); v != version {
		return fmt.Errorf("%w: version %d, not %d", errMessage, v, version)
	}
	m.Kind, m.From, m.Epoch, m.Seq = Kind(r.byte()), r.name(), r.uvarint(math.MaxUint64), r.uvarint(math.MaxUint64)
	switch m.Kind {
	case Say, Bye, Heads:
	case Beat:
		m.Digest, m.Addr, m.Booked, m.Stamp = r.uint64(), r.name(), r.uvarint(math.MaxUint64), r.duration()
		for n := r.uvarint(uint64(len(r.b))); n > 0 && !r.bad; n-- {
			m.Echoes = append(m.Echoes, Echo{r.name(), r.duration(), r.duration()})
		}
	case Page:
		m.After, m.Last = r.slot(), r.byte() != 0
	default:
		return fmt.Errorf("%w: kind %d", errMessage, m.Kind)
	}
	for len(r.b) > 0 && !r.bad {
		kind, length := r.byte(), r.uint16()
		if r.bad || length > len(r.b) {
			r.bad = true
			break
		}
		item := reader{b: r.b[:length], names: names}
		r.b = r.b[length:]
		switch kind {
		case itemShare:
			m.Shares = append(m.Shares, item.share())
		case itemSent:
			m.Sends = append(m.Sends, item.sent())
		case itemOpened:
			m.Opened = append(m.Opened, item.slot())
		case itemHead:
			m.Heads = append(m.Heads, item.head())
		case itemBound:
			m.Bound = append(m.Bound, item.bound())
		}
		r.bad = r.bad || item.bad
	}
	if r.bad || m.From == "" || m.Kind == Page && !m.Last && !m.leads() {
		return errMessage
	}
	return nil
}

// leads reports whether a page has shares after those that it was asked for to go on from: without them the next would be asked for
// without end.
func (m *Message) leads() bool {
	return len(m.Shares) > 0 && compare(m.Shares[len(m.Shares)-1].Slot, m.After) > 0
}

func (r *reader) share() SlotShare {
	s := SlotShare{Slot: r.slot()}
	for _, n := range [...]*int{&s.Requests, &s.ActiveBlocks, &s.PrefillTokens, &s.Faded, &s.Computed, &s.FirstTokens} {
		*n = int(r.uvarint(math.MaxInt32))
	}
	s.Left, s.First = r.duration(), r.duration()
	s.First = min(s.First, s.Left)
	return s
}

func (r *reader) sent() SlotSent {
	s := SlotSent{Slot: r.slot(), Text: r.byte() != 0}
	for len(r.b) > 0 && !r.bad {
		s.Hashes = append(s.Hashes, r.uint64())
	}
	return s
}

func (r *reader) slot() Slot {
	role := int(r.byte())
	if role >= len(roles) {
		r.bad, role = true, 0
	}
	return Slot{Role: roles[role], Model: r.name(), Worker: r.name(), Rank: int(r.uvarint(math.MaxInt32))}
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) uint16() int {
	lo, hi := r.byte(), r.byte()
	return int(lo) | int(hi)<<8
}

func (r *reader) uint64() uint64 {
	if len(r.b) < 8 {
		r.bad, r.b = true, nil
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

// uvarint reads a number up to limit.
func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// longest bounds durations: no predicted time is longer.
const longest = 24 * time.Hour * 365

func (r *reader) duration() time.Duration {
	return time.Duration(r.uvarint(uint64(longest/time.Microsecond))) * time.Microsecond
}

func (r *reader) name() string {
	n := int(r.uvarint(maxName))
	if r.bad || n > len(r.b) {
		r.bad, r.b = true, nil
		return ""
	}
	name := r.b[:n]
	r.b = r.b[n:]
	if known, ok := r.names[string(name)]; ok {
		return known
	}
	fresh := string(name)
	if len(r.names) < maxNames {
		r.names[fresh] = fresh
	}
	return fresh
}

// maxNames bounds the names that are kept: more than there are workers and models in any fleet.
const maxNames = 1 << 16
