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

// version is the version of the messages. Messages of other versions are ignored.
const version = 1

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages.
const (
	Delta     Kind = iota + 1 // shares that have changed
	Heartbeat                 // liveness, and a digest of all shares
	Page                      // the requested part of all shares
	Leave                     // the gateway has drained and has no shares
	Heads                     // all heads of its queues
)

// Slot identifies an account: a worker's rank in a pool. A slot without a worker is the room that a pool keeps for
// prompts computed elsewhere.
type Slot struct {
	Model  string
	Role   pools.Role
	Worker string
	Rank   int
}

// Message is a message to the other gateways. Kind decides which fields count.
type Message struct {
	Kind  Kind
	From  string
	Epoch uint64 // of From's process; higher for later ones
	Seq   uint64 // Delta, Heads: sequence number of the kind, from 1; else that of the latest Delta

	Shares []SlotShare // Delta, Page
	Sends  []SlotSent  // Delta
	Opened []Slot      // Delta: worker ranks whose circuit opened at From, by the slot's role
	Heads  []Head      // Heads
	Bound  []PoolBound // Delta: bindings; Heartbeat: clocks only

	// Heartbeat:
	Digest uint64        // of all shares sent up to Seq
	Addr   string        // HOST:PORT that takes requests, behind https:// for TLS
	Booked uint64        // bookings made
	Stamp  time.Duration // time since its process began
	Echoes []Echo

	// Page:
	After Slot // the page has all shares after this slot,
	Last  bool // up to the end, or to the page's last share
}

// SlotShare is a share of an account.
type SlotShare struct {
	Slot
	load.Share
}

// SlotSent is a prompt that was sent to a worker, to predict its cache. It may be lost.
type SlotSent struct {
	Slot
	Text   bool
	Hashes []uint64
}

// maxHashes bounds the sent part of a prompt, its beginning.
const maxHashes = 4096

// Echo returns a heartbeat's stamp to its sender, to measure the delay.
type Echo struct {
	Name  string
	Stamp time.Duration // of the latest heartbeat received
	Held  time.Duration // since it arrived
}

// maxName bounds names, in bytes: of gateways, models, workers and addresses.
const maxName = 1024

// roles maps role numbers in messages to roles.
var roles = []pools.Role{pools.Prefill, pools.Decode, pools.Both}

// Append appends the encoded message to b. Numbers are unsigned varints, names are length-prefixed.
func (m *Message) Append(b []byte) []byte {
	b = append(b, version, byte(m.Kind))
	b = appendName(b, m.From)
	b = binary.AppendUvarint(b, m.Epoch)
	b = binary.AppendUvarint(b, m.Seq)
	switch m.Kind {
	case Heartbeat:
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

// The kinds of items after a message's header. Each has a length, so unknown kinds can be skipped.
const (
	itemShare = iota + 1
	itemSent
	itemOpened
	itemHead
	itemBound
)

// begin starts an item. end fills in its two-byte length.
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

// errMessage reports a message that cannot be decoded.
var errMessage = errors.New("malformed replica message")

// reader decodes a message. After the first error it returns zeros.
type reader struct {
	b     []byte
	names map[string]string // seen before, to allocate a name once
	bad   bool
}

// read decodes a message into m and reuses its memory. names caches names of earlier messages.
func (m *Message) read(b []byte, names map[string]string) error {
	*m = Message{
		Shares: m.Shares[:0], Sends: m.Sends[:0], Opened: m.Opened[:0], Heads: m.Heads[:0], Bound: m.Bound[:0], Echoes: m.Echoes[:0],
	}
	r := reader{b: b, names: names}
	if v := r.byte(); v != version {
		return fmt.Errorf("%w: version %d, not %d", errMessage, v, version)
	}
	m.Kind, m.From, m.Epoch, m.Seq = Kind(r.byte()), r.name(), r.uvarint(math.MaxUint64), r.uvarint(math.MaxUint64)
	switch m.Kind {
	case Delta, Leave, Heads:
	case Heartbeat:
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

// leads reports whether a page goes beyond the slot it was requested after. Otherwise requests would never end.
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

// longest bounds durations.
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

// maxNames bounds the cached names, above the workers and models of any fleet.
const maxNames = 1 << 16
