package natsbus

import (
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-pd/tandem/kv/wire"
)

// Publish implements [wire.Bus]. Events are sent without waiting for the acknowledgement; too many unacknowledged ones
// are an error, jetstream.ErrTooManyStalledMsgs. A heartbeat carries the last settled number, stored or lost, and the
// stream's position at it.
func (s *Stream) Publish(m *nats.Msg) error {
	switch {
	case !strings.HasPrefix(m.Subject, wire.EventsPrefix):
		if m.Header.Get(wire.HeaderEpoch) != "" { // a publisher's answer
			s.mark(m)
		}
		return s.Core.Publish(m)
	case len(m.Data) == 0:
		return s.beat(m)
	}
	_, seq, err := wire.Numbers(m.Header)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.flights[m.Subject] = append(s.flights[m.Subject], seq)
	s.mu.Unlock()
	// A retried message would arrive after later ones, so none is retried.
	_, err = s.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0), jetstream.WithStallWait(time.Nanosecond))
	if err != nil {
		s.land(m)
		s.lose(err)
	}
	return err
}

// beat sends a heartbeat, unless the connection is down.
func (s *Stream) beat(m *nats.Msg) error {
	epoch, seq, err := wire.Numbers(m.Header)
	if err != nil {
		return err
	}
	if !s.Connected() {
		return nil
	}
	s.mu.Lock()
	if flights := s.flights[m.Subject]; len(flights) > 0 {
		seq = min(seq, slices.Min(flights)-1)
	}
	s.mu.Unlock()
	wire.Stamp(m, epoch, seq)
	s.mark(m)
	m.Subject = wire.BeatPrefix + strings.TrimPrefix(m.Subject, wire.EventsPrefix)
	return s.Core.Publish(m)
}

// mark writes the stream's position.
func (s *Stream) mark(m *nats.Msg) {
	s.mu.Lock()
	at := s.at
	s.mu.Unlock()
	if at.Stream != 0 {
		m.Header.Set(wire.HeaderStream, at.String())
	}
}

// taken notes that the stream has a message.
func (s *Stream) taken(_ jetstream.JetStream, m *nats.Msg, ack *jetstream.PubAck) {
	s.acked.Add(1)
	s.mu.Lock()
	s.at.Seq = ack.Sequence
	s.mu.Unlock()
	s.land(m)
}

// refused notes that it has not, or that this is unknown.
func (s *Stream) refused(_ jetstream.JetStream, m *nats.Msg, err error) {
	s.land(m)
	s.lose(err)
}

// land notes that a message is not under way any more.
func (s *Stream) land(m *nats.Msg) {
	_, seq, _ := wire.Numbers(m.Header) // Publish has read them
	s.mu.Lock()
	defer s.mu.Unlock()
	flights := s.flights[m.Subject]
	if i := slices.Index(flights, seq); i >= 0 {
		flights = slices.Delete(flights, i, i+1)
	}
	if len(flights) == 0 {
		delete(s.flights, m.Subject)
	} else {
		s.flights[m.Subject] = flights
	}
}

// complainEvery is how often the log reports rejected messages.
const complainEvery = 10 * time.Second

// lose counts a message that the stream has not.
func (s *Stream) lose(err error) {
	failed := s.failed.Add(1)
	s.mu.Lock()
	now := time.Now()
	report := now.Sub(s.failing) > complainEvery
	if report {
		s.failing = now
	}
	s.mu.Unlock()
	if report {
		s.log.Warn("KV events not stored in the stream; subscribers will request them", "stream", s.cfg.Name, "failed", failed, "error", err)
	}
	s.search() // it may have been deleted
}
