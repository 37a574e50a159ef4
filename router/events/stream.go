package events

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
)

// StreamConfig is the JetStream stream that keeps KV events. The zero value of each field means its default.
type StreamConfig struct {
	// Name of the stream, by default TANDEM_KV.
	Name string
	// MaxAge and MaxBytes are how long and how many events a stream keeps that is made here, by default an hour and
	// 1 GiB; the oldest go first. One that is there already stays as it is.
	MaxAge   time.Duration
	MaxBytes int64
	// MaxPending is how many messages may wait for the stream to take them, by default 4,096. One more is not sent.
	MaxPending int
	// AckTimeout is how long one may wait, by default 5 s.
	AckTimeout time.Duration
}

// Validate names the first field that is out of range.
func (c *StreamConfig) Validate() error {
	switch {
	case strings.ContainsAny(c.Name, " .*>/\\\t\r\n"):
		return fmt.Errorf("name %q: a stream's name has neither blanks nor any of . * > / \\", c.Name)
	case c.MaxAge < 0 || c.MaxBytes < 0 || c.MaxPending < 0 || c.AckTimeout < 0:
		return errors.New("max age, max bytes, max pending and ack timeout must not be negative")
	}
	return nil
}

// ErrStreamUnfit is what a stream of the configured name is that does not keep KV events, or more than them.
var ErrStreamUnfit = errors.New("the stream cannot keep KV events")

// Stream is the durable [Bus]: events go into a JetStream stream and come out of it, so that who was away goes on where
// it left off. Heartbeats and requests stay on NATS Core: they say how it is now.
type Stream struct {
	*natsBus
	cfg StreamConfig
	js  jetstream.JetStream

	stop  context.CancelFunc
	ended sync.WaitGroup
	lost  chan struct{} // holds at most one: the stream may be gone

	acked, failed atomic.Uint64

	mu      sync.Mutex // guards all below
	handle  jetstream.Stream
	at      position // the last message that the stream took of this process, or had when it was found
	found   chan struct{}
	flights map[string][]uint64 // numbers that the stream has not taken yet, by subject, in the order of sending
	failing time.Time           // when the log last said that messages were not taken
	follow  *following
}

// StreamStats counts what a Stream did.
type StreamStats struct {
	Acked   uint64 // messages that the stream took
	Failed  uint64 // messages that it did not, or not known to have: gaps to subscribers
	Pending int    // messages under way
}

// OverStream is the durable Bus of a NATS connection, which stays the caller's to close, after the Stream. It need not
// be connected yet. The stream is made where there is none. Its error is the config's.
func OverStream(nc *nats.Conn, cfg StreamConfig, limits PendingLimits, log *slog.Logger) (*Stream, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("KV events stream: %w", err)
	}
	cfg.Name = cmp.Or(cfg.Name, "TANDEM_KV")
	cfg.MaxAge = cmp.Or(cfg.MaxAge, time.Hour)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 1<<30)
	cfg.MaxPending = cmp.Or(cfg.MaxPending, 4096)
	cfg.AckTimeout = cmp.Or(cfg.AckTimeout, 5*time.Second)
	s := &Stream{
		natsBus: &natsBus{nc, limits, log}, cfg: cfg,
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

// Close ends what runs for the Stream, subscriptions excepted, and waits for it.
func (s *Stream) Close() {
	s.stop()
	s.ended.Wait()
}

// Stats returns the counts so far.
func (s *Stream) Stats() StreamStats {
	return StreamStats{Acked: s.acked.Load(), Failed: s.failed.Load(), Pending: s.js.PublishAsyncPending()}
}

// How long one question about the stream may take, and the least and most time between attempts to find it. A question
// that a starting server loses is asked again well before heartbeats lose their patience.
const (
	streamTimeout  = beatPatience * 2 / 5
	streamRetryMin = 100 * time.Millisecond
	streamRetryMax = 5 * time.Second
)

// keep finds the stream, or makes it, at each connection.
func (s *Stream) keep(ctx context.Context) {
	changed := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(changed)
	said, wait, anew := "", streamRetryMin, true
	for {
		var retry <-chan time.Time
		if s.nc.IsConnected() {
			if err := s.find(ctx, anew); err == nil {
				said, wait, anew = "", streamRetryMin, false
			} else if ctx.Err() == nil {
				if text := err.Error(); text != said {
					s.log.Warn("KV events are not kept: the stream is not to be had", "stream", s.cfg.Name, "error", err)
					said = text
				}
				retry = time.After(wait)
				wait = min(2*wait, streamRetryMax)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			wait, anew = streamRetryMin, true
		case <-s.lost:
			select { // it is said of each message
			case <-ctx.Done():
				return
			case <-time.After(streamRetryMin):
			}
		case <-retry:
		}
	}
}

// find looks the stream up, or makes it, and tells who follows it if it is another one, or anew.
func (s *Stream) find(ctx context.Context, anew bool) error {
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
	anew = anew || s.handle == nil || !s.handle.CachedInfo().Created.Equal(info.Created)
	s.handle = stream
	if at := (position{uint64(info.Created.UnixNano()), info.State.LastSeq}); !at.before(s.at) {
		s.at = at
	}
	if anew {
		close(s.found)
		s.found = make(chan struct{})
	}
	return nil
}

// make makes the stream.
func (s *Stream) make(ctx context.Context) (jetstream.Stream, error) {
	stream, err := s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: s.cfg.Name, Description: "What Tandem's workers say of their KV caches", Subjects: []string{AllEvents},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
		MaxAge: s.cfg.MaxAge, MaxBytes: s.cfg.MaxBytes, AllowDirect: true,
	})
	if err == nil {
		s.log.Info("KV events are kept in a stream", "stream", s.cfg.Name, "max_age", s.cfg.MaxAge, "max_bytes", s.cfg.MaxBytes)
	}
	return stream, err
}

// fit says what keeps a stream from keeping KV events.
func fit(c jetstream.StreamConfig) error {
	sample := Source{"pool", "worker", 0}
	takes := func(subject string) bool {
		return slices.ContainsFunc(c.Subjects, func(pattern string) bool {
			return matches(strings.Split(pattern, "."), strings.Split(subject, "."))
		})
	}
	switch {
	case !takes(sample.EventsSubject()):
		return fmt.Errorf("%w: %s takes %s, not %s", ErrStreamUnfit, c.Name, strings.Join(c.Subjects, ", "), AllEvents)
	case takes(sample.SnapshotSubject()) || takes(sample.BeatSubject()):
		// It would answer requests that are a publisher's to answer.
		return fmt.Errorf("%w: %s takes %s, more than %s", ErrStreamUnfit, c.Name, strings.Join(c.Subjects, ", "), AllEvents)
	case c.Retention != jetstream.LimitsPolicy:
		return fmt.Errorf("%w: %s lets go of what was read, its retention must be by limits", ErrStreamUnfit, c.Name)
	case c.NoAck || c.Sealed:
		return fmt.Errorf("%w: %s takes no messages, or does not say that it did", ErrStreamUnfit, c.Name)
	}
	return nil
}

// position is a place in a stream, told from streams of the same name before and after it.
type position struct {
	stream uint64 // when it was made, in nanoseconds since 1970; 0 for no position
	seq    uint64
}

// before says that p comes before q in the same stream.
func (p position) before(q position) bool { return p.stream == q.stream && p.seq < q.seq }

func (p position) String() string { return fmt.Sprintf("%d-%d", p.stream, p.seq) }

// positionOf reads [HeaderStream]; the zero position where there is none.
func positionOf(h nats.Header) (p position) {
	if text := h.Get(HeaderStream); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%d", &p.stream, &p.seq); err != nil {
			return position{}
		}
	}
	return p
}
