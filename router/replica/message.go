package replica

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/load"
)

// Message is a message to the other gateways. Kind decides which fields count.
type Message struct {
	Kind  natsbus.Kind
	From  string
	Epoch uint64 // of From's process; higher for later ones
	Seq   uint64 // Delta, Heads: sequence number of the kind, from 1; else that of the latest Delta

	Shares []SlotShare // Delta, Page
	Sends  []SlotSent  // Delta
	Opened []Slot      // Delta: worker ranks whose circuit opened at From, by the slot's role
	Heads  []ModelHead // Heads
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

// ModelHead is a head of a model's queue. Other gateways leave room for it.
type ModelHead struct {
	Model string
	queue.Head
}

// PoolBound holds bindings of a pool's sessions. Like a sent prompt it may be lost.
type PoolBound struct {
	Model    string
	Role     pools.Role
	Clock    int64 // see [load.Sessions.Delta]
	Bindings []load.SessionBinding
}

// errMessage reports a message that cannot be decoded.
var errMessage = errors.New("malformed replica message")

// roles maps role numbers in messages to roles.
var roles = []pools.Role{pools.Prefill, pools.Decode, pools.Both}

func roleNumber(r pools.Role) (uint8, error) { return uint8(max(0, slices.Index(roles, r))), nil }

func roleOf(n uint8) (pools.Role, error) {
	if int(n) >= len(roles) {
		return "", errMessage
	}
	return roles[n], nil
}

// Append appends the encoded message to b.
func (m *Message) Append(b []byte) []byte {
	body := body{
		Epoch: m.Epoch, Seq: m.Seq, Sends: m.Sends, Opened: m.Opened, Digest: m.Digest, Addr: m.Addr, Booked: m.Booked,
		Stamp: m.Stamp, Echoes: m.Echoes, Last: m.Last,
	}
	if m.Kind == natsbus.Page {
		body.After = &m.After
	}
	for i := range m.Shares {
		s := &m.Shares[i]
		body.Shares = append(body.Shares, share{
			s.Slot, count(s.Requests), count(s.ActiveBlocks), count(s.PrefillTokens), count(s.Faded), count(s.Computed),
			count(s.FirstTokens), s.Left, s.First,
		})
	}
	for _, h := range m.Heads {
		body.Heads = append(body.Heads, head{h.Model, h.Lane, h.Retry, h.Strict, h.Key, count(h.Tokens)})
	}
	for _, p := range m.Bound {
		all := make([]binding, 0, len(p.Bindings))
		for _, s := range p.Bindings {
			all = append(all, binding{s.Session, s.Worker, count(int(s.Rank)), s.Moves, s.Born, s.Idle})
		}
		body.Bound = append(body.Bound, sessions{p.Model, p.Role, p.Clock, all})
	}
	b, _ = body.MarshalMsg(natsbus.Seal(b, m.Kind, m.From)) // roleNumber does not fail
	return b
}

// count bounds a number in a message.
func count(n int) uint32 { return uint32(max(0, min(n, math.MaxInt32))) }

// read decodes a message into m. It bounds all numbers and names.
func (m *Message) read(data []byte) error {
	e, rest, err := natsbus.Open(data)
	if err != nil {
		return err
	}
	var b body
	if err := natsbus.Body(rest, &b); err != nil {
		return err
	}
	*m = Message{
		Kind: e.Kind, From: e.From, Epoch: b.Epoch, Seq: b.Seq, Sends: b.Sends, Opened: b.Opened, Digest: b.Digest, Addr: b.Addr,
		Booked: b.Booked, Stamp: bounded(b.Stamp), Echoes: b.Echoes, Last: b.Last,
	}
	ok := named(b.Addr)
	if b.After != nil {
		m.After, ok = *b.After, ok && b.After.valid()
	}
	for _, s := range b.Shares {
		ok = ok && s.Slot.valid()
		of := SlotShare{Slot: s.Slot, Share: load.Share{
			Account: load.Account{
				Requests: int(s.Requests), ActiveBlocks: int(s.ActiveBlocks), PrefillTokens: int(s.PrefillTokens), Faded: int(s.Faded),
			},
			Left: bounded(s.Left), Computed: int(s.Computed), FirstTokens: int(s.FirstTokens),
		}}
		of.First = min(bounded(s.First), of.Left)
		m.Shares = append(m.Shares, of)
	}
	for _, s := range b.Sends {
		ok = ok && s.Slot.valid()
	}
	for _, s := range b.Opened {
		ok = ok && s.valid()
	}
	for _, h := range b.Heads {
		ok = ok && named(h.Model)
		m.Heads = append(m.Heads, ModelHead{h.Model, queue.Head{
			Lane: h.Lane, Retry: h.Retry, Strict: h.Strict, Key: h.Key, Tokens: int(h.Tokens),
		}})
	}
	for _, p := range b.Bound {
		ok = ok && named(p.Model)
		of := PoolBound{Model: p.Model, Role: p.Role, Clock: millis(p.Clock)}
		for _, s := range p.Bindings {
			of.Bindings = append(of.Bindings, load.SessionBinding{
				Session: s.Session, Worker: s.Worker, Rank: int32(min(s.Rank, math.MaxInt32)), Moves: min(s.Moves, math.MaxInt32),
				Born: millis(s.Born), Idle: millis(s.Idle),
			})
		}
		m.Bound = append(m.Bound, of)
	}
	for i := range m.Echoes {
		echo := &m.Echoes[i]
		ok = ok && named(echo.Name)
		echo.Stamp, echo.Held = bounded(echo.Stamp), bounded(echo.Held)
	}
	if !ok || m.Kind < natsbus.Delta || m.Kind > natsbus.Heads || m.Kind == natsbus.Page && !m.Last && !m.leads() {
		return errMessage
	}
	return nil
}

// leads reports whether a page goes beyond the slot it was requested after. Otherwise requests would never end.
func (m *Message) leads() bool {
	return len(m.Shares) > 0 && compare(m.Shares[len(m.Shares)-1].Slot, m.After) > 0
}

// named reports whether a name in a message has at most 1024 bytes.
func named(name string) bool { return len(name) <= 1024 }

func (s *Slot) valid() bool {
	return named(s.Model) && named(s.Worker) && s.Rank >= 0 && s.Rank <= math.MaxInt32
}

// bounded keeps a duration between 0 and a year.
func bounded(d time.Duration) time.Duration { return max(0, min(d, 365*24*time.Hour)) }

func millis(n int64) int64 { return max(0, min(n, load.MaxSessionMillis)) }
