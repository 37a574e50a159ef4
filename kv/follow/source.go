package follow

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// maxRepairAttempts is how many repairs may fail before a gap is given up.
const maxRepairAttempts = 4

// source is the common part of [natsSource] and [zmqSource]: a rank's view, the order of its messages, and its status.
// It is a core: only the Subscriber's loop calls it.
type source struct {
	name  wire.Source
	how   tracked
	cfg   *Config
	log   *slog.Logger
	count *poolCounters

	began time.Time // when it was tracked

	flow  flow
	view  *view.View
	batch *wire.Batch // shared by all sources, valid within one call
	// applied runs after each message, with the earlier tally; ok is false if the message could not be read.
	applied func(payload []byte, before view.Tally, ok bool)
	onState func(was, is State) // on a change of state or epoch; may be nil

	lastSeen       time.Time // when its last message arrived, or when it was tracked
	predictedSince time.Time // for the log; zero when not predicted, or repaired since
	silenceLogged  bool
	fetching       bool      // a repair is in flight
	restoring      bool      // request the view from other gateways first
	attempts       int       // consecutive failures
	retryAt        time.Time // the earliest next repair

	shared
}

// shared is the part of a source that [source.status] reads on other goroutines.
type shared struct {
	state                         atomic.Uint32
	epoch, seq                    atomic.Uint64
	blocks, blockSize, lastSeenAt atomic.Int64 // lastSeenAt in nanoseconds since just before began, 0 for never: the system's clock may be set
	applications, gaps, orphans   atomic.Uint64
	losses, reannounced           atomic.Uint64
	repairs                       [len(Methods)]atomic.Uint64
}

// newSource returns a source with an empty view that feeds part.
func newSource(name wire.Source, part index.Part, how tracked, cfg *Config, batch *wire.Batch, count *poolCounters,
	log *slog.Logger) *source {
	s := &source{name: name, how: how, cfg: cfg, log: log, view: view.New(part, how.blockSize), batch: batch, count: count, began: time.Now()}
	s.view.Register(how.capacity)
	return s
}

func (s *source) base() *source { return s }

// transport is "nats" or "zmq".
func (s *source) transport() string {
	if s.how.zmq.Endpoint != "" {
		return "zmq"
	}
	return "nats"
}

func (s *source) status() SourceStatus {
	is := SourceStatus{
		Source: s.name, Transport: s.transport(), State: State(s.state.Load()), Epoch: s.epoch.Load(), Seq: s.seq.Load(),
		Blocks: int(s.blocks.Load()), BlockSize: int(s.blockSize.Load()), Applied: s.applications.Load(), Gaps: s.gaps.Load(),
		Orphans: s.orphans.Load(), Reannounced: s.reannounced.Load(), Losses: s.losses.Load(),
	}
	if at := s.lastSeenAt.Load(); at != 0 {
		is.LastSeen = s.began.Add(time.Duration(at - 1))
	}
	for by := range is.Repaired {
		is.Repaired[by] = s.repairs[by].Load()
	}
	is.Snapshots = is.Repaired[BySnapshot] + is.Repaired[ByReplay]
	return is
}

// observe judges a message, and applies or holds it.
func (s *source) observe(epoch, seq uint64, payload []byte) verdict {
	v := s.flow.observe(epoch, seq, false)
	if v == newEpoch {
		s.count.verdicts[v].Inc()
		s.view.Clear()
		v = s.flow.observe(epoch, seq, false)
	}
	if v == gap && wire.DecodeBatch(s.batch, payload) == nil && s.batch.HasCleared() {
		v = s.flow.observe(epoch, seq, true)
	}
	switch v {
	case apply:
		s.apply(payload)
		s.catchUp()
	case gap:
		s.flow.hold(seq, payload)
	}
	return v
}

// apply applies one message's events to the view.
func (s *source) apply(payload []byte) {
	s.age(time.Now())
	before, over := s.view.Tally(), s.view.Overgrown()
	if wire.DecodeBatch(s.batch, payload) != nil {
		s.count.skipped("malformed", 1)
		s.applied(payload, before, false)
		return
	}
	s.count.skipped("unreadable", uint64(s.batch.Skipped))
	s.count.skipped("field", uint64(s.batch.SkippedFields))
	for i := range s.batch.Events { // one by one, to count each by its outcome
		was := s.view.Tally()
		s.view.Apply(s.batch.Events[i : i+1])
		s.count.event(s.batch.Events[i].Kind, was, s.view.Tally())
	}
	s.applications.Add(1)
	after := s.view.Tally()
	s.count.count(before, after)
	s.orphans.Add(after.Orphans - before.Orphans)
	switch now := s.view.Overgrown(); {
	case !now && s.cfg.Tap != nil:
		s.cfg.Tap.Applied(s.name, s.batch.Events)
	case now && !over:
		s.lose()
	}
	s.applied(payload, before, true)
}

// age drops blocks by age on media that announce no removals.
func (s *source) age(now time.Time) {
	if gone := s.view.Age(now); len(gone) > 0 {
		s.blocks.Store(int64(s.view.Blocks()))
		if s.cfg.Tap != nil {
			s.cfg.Tap.Applied(s.name, gone)
		}
	}
}

// catchUp applies held messages that are next.
func (s *source) catchUp() {
	for payload, ok := s.flow.next(); ok; payload, ok = s.flow.next() {
		s.apply(payload)
	}
}

// lose counts a permanent loss that emptied the view.
func (s *source) lose() {
	s.losses.Add(1)
	if s.cfg.Tap != nil {
		s.cfg.Tap.Lost(s.name)
	}
}

// repaired counts a filled gap.
func (s *source) repaired(by Method) {
	s.repairs[by].Add(1)
	s.count.methods[by].Inc()
}

// failed delays the next repair, doubling each time, with jitter.
func (s *source) failed(now time.Time, rng *rand.Rand) {
	wait := guard.Backoff{Min: s.cfg.RetryMin, Max: s.cfg.RetryMax}
	s.retryAt = now.Add(wait.Delay(s.attempts, rng))
	s.attempts++
}

// retry makes the next repair due at once.
func (s *source) retry(now time.Time) { s.attempts, s.retryAt = 0, now }

// touch records a message.
func (s *source) touch(now time.Time) {
	s.lastSeen = now
	s.lastSeenAt.Store(int64(now.Sub(s.began)) + 1)
}

// setState updates the status. state is the trust in the view by its messages.
func (s *source) setState(state State) {
	// Misfit or overgrown views and pieces cannot be looked up, even if complete.
	if state == Live && (s.view.Misfit() != 0 || s.view.Overgrown() || s.view.Pieces() != "") {
		state = Predicted
	}
	was, known := State(s.state.Swap(uint32(state))), s.epoch.Swap(s.flow.epoch)
	if was != state && s.cfg.Tap != nil {
		s.cfg.Tap.StateChanged(s.name, state)
	}
	s.seq.Store(s.flow.seq)
	s.blocks.Store(int64(s.view.Blocks()))
	s.blockSize.Store(int64(s.view.EngineBlock()))
	s.reannounced.Store(s.view.Tally().Reannounced)
	if (was != state || known != s.flow.epoch) && s.onState != nil {
		s.onState(was, state)
	}
}
