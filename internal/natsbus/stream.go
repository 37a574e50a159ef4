package natsbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/wire"
)

// StreamConfig is the JetStream stream that stores KV events. Zero fields mean their defaults.
type StreamConfig struct {
	// Name of the stream, by default TANDEM_KV.
	Name string
	// MaxAge and MaxBytes limit a stream that is created here, by default to an hour and 1 GiB; the oldest events go
	// first. An existing stream stays as it is.
	MaxAge     time.Duration
	MaxBytes   int64
	MaxPending int           // messages that may wait for the stream to take them, 4,096; one more is not sent
	AckTimeout time.Duration // for the stream to take one, 5 s
}

// errStreamUnfit reports a stream of the configured name that does not store KV events, or stores more than them.
var errStreamUnfit = errors.New("the stream cannot keep KV events")

// Stream is the durable [wire.Bus]: events go through a JetStream stream, so that a gateway resumes where it stopped.
// Heartbeats and requests stay on NATS Core: they describe the present.
type Stream struct {
	*Core
	cfg StreamConfig
	js  jetstream.JetStream

	stop  context.CancelFunc
	ended sync.WaitGroup
	lost  chan struct{} // holds at most one: the stream may be gone

	acked, failed atomic.Uint64

	mu      sync.Mutex // guards all below
	handle  jetstream.Stream
	at      wire.Position // the last message that the stream took of this process, or had when it was found
	found   chan struct{}
	flights map[string][]uint64 // numbers that the stream has not taken yet, by subject, in the order of sending
	failing time.Time           // when the log last reported rejected messages
	follow  *following
}

// StreamStats are counters of a Stream.
type StreamStats struct {
	Acked   uint64 // messages that the stream took
	Failed  uint64 // messages that were not stored, or not acknowledged: gaps to subscribers
	Pending int    // messages under way
	Found   bool   // the stream was found or created
}

// OverStream returns the durable Bus of a NATS connection, which the caller closes after the Stream. It need not be
// connected yet. A missing stream is created.
func OverStream(nc *nats.Conn, cfg StreamConfig, limits PendingLimits, log *slog.Logger) (*Stream, error) {
	cfg.Name = cmp.Or(cfg.Name, "TANDEM_KV")
	cfg.MaxAge = cmp.Or(cfg.MaxAge, time.Hour)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 1<<30)
	cfg.MaxPending = cmp.Or(cfg.MaxPending, 4096)
	cfg.AckTimeout = cmp.Or(cfg.AckTimeout, 5*time.Second)
	s := &Stream{
		Core: &Core{nc, limits, log}, cfg: cfg,
		lost: make(chan struct{}, 1), found: make(chan struct{}), flights: map[string][]uint64{},
	}
	var err error
	s.js, err = jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(cfg.MaxPending), jetstream.WithPublishAsyncTimeout(cfg.AckTimeout),
		jetstream.WithPublishAsyncAckHandler(s.taken), jetstream.WithPublishAsyncErrHandler(s.refused))
	if err != nil {
		return nil, fmt.Errorf("KV events stream: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.ended.Go(func() { s.keep(ctx) })
	return s, nil
}

// Close ends the Stream's goroutines, subscriptions excepted, and waits for them.
func (s *Stream) Close() {
	s.stop()
	s.ended.Wait()
}

// Stats returns the counts so far.
func (s *Stream) Stats() StreamStats {
	s.mu.Lock()
	found := s.handle != nil
	s.mu.Unlock()
	return StreamStats{Acked: s.acked.Load(), Failed: s.failed.Load(), Pending: s.js.PublishAsyncPending(), Found: found}
}

// streamTimeout bounds one request about the stream. A request that a starting server loses is repeated well before
// beatPatience ends.
const streamTimeout = beatPatience * 2 / 5

// streamRetry is the time between attempts to find the stream.
var streamRetry = guard.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// keep finds or creates the stream at each connection.
func (s *Stream) keep(ctx context.Context) {
	changed := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(changed)
	logged, failures, again := "", 0, true
	for {
		var retry <-chan time.Time
		if s.nc.IsConnected() {
			if err := s.find(ctx, again); err == nil {
				logged, failures, again = "", 0, false
			} else if ctx.Err() == nil {
				if text := err.Error(); text != logged {
					s.log.Warn("KV events not stored: the stream is not available", "stream", s.cfg.Name, "error", err)
					logged = text
				}
				retry = time.After(streamRetry.Delay(failures, nil))
				failures++
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			failures, again = 0, true
		case <-s.lost:
			select { // for each message
			case <-ctx.Done():
				return
			case <-time.After(streamRetry.Min):
			}
		case <-retry:
		}
	}
}

// find looks the stream up, or makes it, and restarts its reader if the stream is another one, or again is set.
func (s *Stream) find(ctx context.Context, again bool) error {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, s.cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if stream, err = s.make(ctx); errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another made it in this moment
			stream, err = s.js.Stream(ctx, s.cfg.Name)
		}
	}
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	if err := fit(info.Config); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	again = again || s.handle == nil || !s.handle.CachedInfo().Created.Equal(info.Created)
	s.handle = stream
	if at := (wire.Position{Stream: uint64(info.Created.UnixNano()), Seq: info.State.LastSeq}); !at.Before(s.at) {
		s.at = at
	}
	if again {
		close(s.found)
		s.found = make(chan struct{})
	}
	return nil
}

func (s *Stream) make(ctx context.Context) (jetstream.Stream, error) {
	stream, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: s.cfg.Name, Description: "KV cache events of Tandem's workers", Subjects: []string{wire.AllEvents},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
		MaxAge: s.cfg.MaxAge, MaxBytes: s.cfg.MaxBytes, AllowDirect: true,
	})
	if err == nil {
		s.log.Info("storing KV events in a stream", "stream", s.cfg.Name, "max_age", s.cfg.MaxAge, "max_bytes", s.cfg.MaxBytes)
	}
	return stream, err
}

// fit returns why a stream cannot store KV events.
func fit(c jetstream.StreamConfig) error {
	sample := wire.Source{Pool: "pool", Worker: "worker", Rank: 0}
	takes := func(subject string) bool {
		return slices.ContainsFunc(c.Subjects, func(pattern string) bool {
			return wire.SubjectMatches(strings.Split(pattern, "."), strings.Split(subject, "."))
		})
	}
	switch {
	case !takes(sample.EventsSubject()):
		return fmt.Errorf("%w: %s takes %s, not %s", errStreamUnfit, c.Name, strings.Join(c.Subjects, ", "), wire.AllEvents)
	case takes(sample.SnapshotSubject()) || takes(sample.BeatSubject()):
		// It would answer requests that are a publisher's to answer.
		return fmt.Errorf("%w: %s takes %s, more than %s", errStreamUnfit, c.Name, strings.Join(c.Subjects, ", "), wire.AllEvents)
	case c.Retention != jetstream.LimitsPolicy:
		return fmt.Errorf("%w: %s drops what was read; its retention must be limits", errStreamUnfit, c.Name)
	case c.NoAck || c.Sealed:
		return fmt.Errorf("%w: %s accepts no messages, or does not acknowledge them", errStreamUnfit, c.Name)
	}
	return nil
}
