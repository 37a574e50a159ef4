package natsbus

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/wire"
)

// errFollowed rejects a second subscription to a [Stream]'s events.
var errFollowed = errors.New("the stream is followed already")

// following is a subscription to the stream's events. A heartbeat, which is not in the stream, is delivered after the
// stream up to the sender's position: else it would overtake its own process's events.
type following struct {
	mu     sync.Mutex // guards all below, and is held while handle works: one message at a time
	handle func(*nats.Msg)
	beat   func(*nats.Msg)
	read   wire.Position
	early  map[string]earlyBeat // by subject, at most maxEarly
	swept  time.Time            // when heartbeats that waited too long were last dropped
}

type earlyBeat struct {
	m     *nats.Msg
	at    wire.Position
	since time.Time
}

// beatPatience is how long a heartbeat waits for its position in the stream, which may have been purged.
const beatPatience = 5 * time.Second

// maxEarly is how many heartbeats wait at a time: a sender may name any source.
const maxEarly = 1 << 14

// Subscribe implements [wire.Bus]. [wire.AllEvents] is read from the stream: from its beginning when first found, and
// from the last position after a reconnect.
func (s *Stream) Subscribe(subject string, handle func(*nats.Msg), slow func(int)) (func(), error) {
	switch subject {
	case wire.AllEvents:
		f, err := s.followed(func(f *following) error {
			if f.handle != nil {
				return errFollowed
			}
			f.handle = handle
			return nil
		})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() { s.run(ctx, f) })
		return func() {
			cancel()
			done.Wait()
			s.mu.Lock()
			s.follow = nil
			s.mu.Unlock()
		}, nil
	case wire.AllBeats:
		f, err := s.followed(func(f *following) error { f.beat = handle; return nil })
		if err != nil {
			return nil, err
		}
		return s.Core.Subscribe(subject, f.take, slow)
	}
	return s.Core.Subscribe(subject, handle, slow)
}

func (s *Stream) followed(change func(*following) error) (*following, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.follow == nil {
		s.follow = &following{early: map[string]earlyBeat{}}
	}
	s.follow.mu.Lock()
	defer s.follow.mu.Unlock()
	return s.follow, change(s.follow)
}

// run reads the stream until ctx ends. It starts again at each connection and when the stream was lost.
func (s *Stream) run(ctx context.Context, f *following) {
	for {
		s.mu.Lock()
		stream, found := s.handle, s.found
		s.mu.Unlock()
		var reading jetstream.ConsumeContext
		var retry <-chan time.Time
		if stream != nil {
			var err error
			if reading, err = s.read(ctx, stream, f); err != nil && ctx.Err() == nil {
				s.log.Warn("KV events not read: the stream is not available", "stream", s.cfg.Name, "error", err)
				s.search()
				retry = time.After(time.Second)
			}
		}
		select {
		case <-ctx.Done():
		case <-found:
		case <-retry:
		}
		if reading != nil {
			reading.Stop()
			<-reading.Closed()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// search makes keep look for the stream again.
func (s *Stream) search() {
	select {
	case s.lost <- struct{}{}:
	default: // it will
	}
}

// read begins to read stream from where f is.
func (s *Stream) read(ctx context.Context, stream jetstream.Stream, f *following) (jetstream.ConsumeContext, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	info := stream.CachedInfo()
	made := uint64(info.Created.UnixNano())
	f.mu.Lock()
	switch {
	case f.read.Stream == 0:
		f.read = wire.Position{Stream: made, Seq: info.State.LastSeq}
	case f.read.Stream != made:
		f.read = wire.Position{Stream: made} // it is another: all of it is new
	}
	f.read.Seq = max(f.read.Seq, max(info.State.FirstSeq, 1)-1) // what is before is gone
	from := f.read.Seq + 1
	f.release()
	f.mu.Unlock()
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from, InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	return consumer.Consume(func(m jetstream.Msg) {
		guard.Do(s.log, "stream", func() { f.message(made, m) })
	}, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		s.log.Debug("KV events stream", "stream", s.cfg.Name, "error", err)
		if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerDeleted) {
			s.search()
		}
	}))
}

// message hands one message of the stream on, if it is the next.
func (f *following) message(made uint64, jm jetstream.Msg) {
	meta, err := jm.Metadata()
	if err != nil {
		return // no message of a stream
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read.Stream != made || meta.Sequence.Stream <= f.read.Seq {
		return // of a reading that has ended
	}
	f.read.Seq = meta.Sequence.Stream
	m := &nats.Msg{Subject: jm.Subject(), Header: jm.Headers(), Data: jm.Data()}
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	m.Header.Set(wire.HeaderStream, f.read.String())
	f.handle(m)
	f.release()
}

// take delivers a heartbeat, or holds it until the stream has been read up to its position.
func (f *following) take(m *nats.Msg) {
	at, now := wire.PositionOf(m.Header), time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	since := now
	if old, ok := f.early[m.Subject]; ok {
		since = old.since
	}
	if len(f.early) >= maxEarly && now.Sub(f.swept) >= beatPatience/5 { // those that waited too long have no living sender
		f.swept = now
		maps.DeleteFunc(f.early, func(_ string, b earlyBeat) bool { return now.Sub(b.since) >= beatPatience })
	}
	if f.read.Before(at) && now.Sub(since) < beatPatience && len(f.early) < maxEarly {
		f.early[m.Subject] = earlyBeat{m, at, since}
		return
	}
	delete(f.early, m.Subject)
	f.beat(m)
}

// release delivers the heartbeats that are due. The caller holds f.mu.
func (f *following) release() {
	for subject, b := range f.early {
		if !f.read.Before(b.at) {
			delete(f.early, subject)
			f.beat(b.m)
		}
	}
}

// historyPatience is how long a history request waits for a stream that was not found yet, before it goes to a worker.
const historyPatience = 2 * time.Second

// History returns the stream's messages of a source's present or last process, at most maxBytes of them; nil where
// those from the first number on are not all there.
func (s *Stream) History(ctx context.Context, source wire.Source, maxBytes int) (*wire.Run, error) {
	s.mu.Lock()
	stream, found := s.handle, s.found
	s.mu.Unlock()
	if stream == nil { // it is being looked for, at a start
		patience := time.NewTimer(historyPatience)
		defer patience.Stop()
		select {
		case <-found:
			return s.History(ctx, source, maxBytes)
		case <-patience.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	subject := source.EventsSubject()
	last, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	first, err := stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(subject))
	if err != nil {
		return nil, err
	}
	epoch, _, err := wire.Numbers(last.Header)
	if err != nil {
		return nil, err
	}
	if e, seq, err := wire.Numbers(first.Header); err != nil || e == epoch && seq > 1 {
		return nil, err // the beginning was dropped
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: first.Sequence,
		InactiveThreshold: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	r := &wire.Run{Epoch: epoch, First: 1, At: wire.Position{Stream: uint64(stream.CachedInfo().Created.UnixNano()), Seq: 0}}
	for bytes := 0; r.At.Seq < last.Sequence; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		r.At.Seq = meta.Sequence.Stream
		e, seq, err := wire.Numbers(m.Headers())
		if err != nil || e != epoch || len(m.Data()) == 0 || seq < r.Next() {
			continue // of a process before, a heartbeat of a publisher that is not durable, or one sent twice
		}
		if bytes += len(m.Data()) + wire.MessageOverhead; seq > r.Next() || bytes > maxBytes {
			break // the publisher still has it, perhaps
		}
		r.Messages = append(r.Messages, m.Data())
	}
	if len(r.Messages) == 0 {
		return nil, nil
	}
	return r, nil
}
