package wire

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// What a NATS subject begins with. Of events: tandem.kv.<pool>.<worker>.<rank>, and alike of snapshots.
const (
	EventsPrefix   = "tandem.kv."
	snapshotPrefix = "tandem.kv-snapshot."
	BeatPrefix     = "tandem.kv-beat."

	// AllEvents is the subject that matches the events of every source.
	AllEvents = EventsPrefix + ">"
	// AllBeats is that of their heartbeats, where the events go into a stream; else those are on the events' subject.
	AllBeats = BeatPrefix + ">"
)

// Headers of the messages on these subjects. Epoch is drawn at random by each publisher; the first message of an
// epoch has sequence 1. Both are decimal. A message with neither is none of ours.
const (
	HeaderEpoch = "Tandem-Epoch"
	HeaderSeq   = "Tandem-Seq"

	// A request for a snapshot that has both is for the messages from that number on, of that epoch, and HeaderUntil for
	// none after another. A publisher that still has them answers with [StatusRing], any other with a snapshot.
	HeaderUntil = "Tandem-Until"

	// HeaderStream is, in what a durable publisher sends outside the stream, how far the stream had come: when it was made
	// in nanoseconds since 1970, a dash, and the stream's own number. See [Stream].
	HeaderStream = "Tandem-Stream"

	// HeaderCursor names a page of a snapshot: in a request the page that is wanted (absent: the first of a new
	// snapshot), in an answer the page that comes next (absent: this was the last).
	HeaderCursor = "Tandem-Cursor"
	// HeaderStatus is [StatusGone] if a snapshot's pages are no longer kept, and [StatusRing] if the answer has
	// messages as sent, each length-prefixed by a varint, from number HeaderSeq. [StatusNone]: a gateway does not know
	// the source well enough.
	HeaderStatus = "Tandem-Status"
	StatusGone   = "gone"
	StatusRing   = "ring"
	StatusNone   = "none"
)

// HeaderPartial marks messages, heartbeats and snapshots of a publisher with an incomplete state of its engine. A
// subscriber predicts the source until the header is absent again; an older one ignores the header.
const HeaderPartial = "Tandem-Partial"

// Partial reports whether a message has [HeaderPartial].
func Partial(h nats.Header) bool { return h.Get(HeaderPartial) != "" }

// Source is a publisher: one data-parallel rank of one worker. Pool is its pool's name, "model/role".
type Source struct {
	Pool   string
	Worker string
	Rank   int // from 0
}

func (s Source) String() string { return fmt.Sprintf("%s %s/%d", s.Pool, s.Worker, s.Rank) }

// EventsSubject is the subject that s publishes its events on. Each part is one token of the subject: bytes outside
// [A-Za-z0-9_-] are written =XX, in upper-case hexadecimal.
func (s Source) EventsSubject() string { return s.subject(EventsPrefix) }

// SnapshotSubject is the subject on which s answers snapshot requests.
func (s Source) SnapshotSubject() string { return s.subject(snapshotPrefix) }

// BeatSubject is the subject of s's heartbeats, where its events go into a stream.
func (s Source) BeatSubject() string { return s.subject(BeatPrefix) }

func (s Source) subject(prefix string) string {
	b := make([]byte, 0, len(prefix)+len(s.Pool)+len(s.Worker)+16)
	b = append(b, prefix...)
	b = append(appendToken(b, s.Pool), '.')
	b = append(appendToken(b, s.Worker), '.')
	return string(strconv.AppendInt(b, int64(s.Rank), 10))
}

const upperHex = "0123456789ABCDEF"

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

func appendToken(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; plain(c) {
			dst = append(dst, c)
		} else {
			dst = append(dst, '=', upperHex[c>>4], upperHex[c&15])
		}
	}
	return dst
}

// Stamp writes the headers that number a message.
func Stamp(m *nats.Msg, epoch, seq uint64) {
	m.Header.Set(HeaderEpoch, strconv.FormatUint(epoch, 10))
	m.Header.Set(HeaderSeq, strconv.FormatUint(seq, 10))
}

// MaxNumber is the highest number of a message: at a million messages a second it is reached after nine years.
const MaxNumber = 1 << 48

// Numbers reads what Stamp wrote. An epoch is never 0, and no number above [MaxNumber].
func Numbers(h nats.Header) (epoch, seq uint64, err error) {
	if epoch, err = strconv.ParseUint(h.Get(HeaderEpoch), 10, 64); err != nil || epoch == 0 {
		return 0, 0, fmt.Errorf("header %s is %q, not a number above 0", HeaderEpoch, h.Get(HeaderEpoch))
	}
	if seq, err = strconv.ParseUint(h.Get(HeaderSeq), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("header %s is %q, not a number", HeaderSeq, h.Get(HeaderSeq))
	}
	if seq > MaxNumber {
		return 0, 0, fmt.Errorf("header %s is %d, which no publisher comes to", HeaderSeq, seq)
	}
	return epoch, seq, nil
}

// EventsOfBeat is the events' subject that a heartbeat's subject is of; false for any other subject.
func EventsOfBeat(subject string) (string, bool) {
	rest, ok := strings.CutPrefix(subject, BeatPrefix)
	return EventsPrefix + rest, ok
}

// SubjectMatches reports whether a subscription to pattern matches subject, both split at their dots.
func SubjectMatches(pattern, subject []string) bool {
	for i, token := range pattern {
		switch {
		case i >= len(subject):
			return false
		case token == ">":
			return true
		case token != "*" && token != subject[i]:
			return false
		}
	}
	return len(pattern) == len(subject)
}
