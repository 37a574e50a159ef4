package follow

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/backoff"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// maxRepairAttempts is the number of failed repairs after which a gap is given up.
const maxRepairAttempts = 4

// source is what [published] and [engine] have in common: the view of one rank, the order of its messages, and what is
// known of it outside the loop. Both are cores: the Subscriber's loop alone calls them, with the time.
type source struct {
	name  wire.Source
	how   tracked
	cfg   *Config
	log   *slog.Logger
	count *poolCounters

	began time.Time // it is followed

	flow  flow
	view  *view.View
	batch *wire.Batch // shared by all sources, for use within one call
	// applied is called after each message, with the tally before it; ok is false where the message could not be read.
	applied func(payload []byte, before view.Tally, ok bool)
	onState func(was, is State) // called when the state or the epoch has changed; may be nil

	heard          time.Time // when its last message came, or when it began to be followed
	predictedSince time.Time // for the log; zero when it is not predicted, or was repaired since
	silenceLogged  bool
	fetching       bool      // a repair is on its way
	restoring      bool      // the other gateways are to be asked before the worker is
	attempts       int       // failed ones, one after another
	retryAt        time.Time // no repair is tried before

	// To be read while the loop works.
	state                       atomic.Uint32
	epoch, seq                  atomic.Uint64
	blocks, blockSize, heardAt  atomic.Int64 // heardAt in nanoseconds from just before began, 0 for never: the system's clock may be set meanwhile
	applications, gaps, orphans atomic.Uint64
	losses, reannounced         atomic.Uint64
	repairs                     [len(Methods)]atomic.Uint64
}

// newSource returns a source whose view is empty and feeds part.
func newSource(name wire.Source, part view.Part, how tracked, cfg *Config, batch *wire.Batch, count *poolCounters, log *slog.Logger) *source {
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
	if at := s.heardAt.Load(); at != 0 {
		is.Heard = s.began.Add(time.Duration(at - 1))
	}
	for by := range is.Repaired {
		is.Repaired[by] = s.repairs[by].Load()
	}
	is.Snapshots = is.Repaired[BySnapshot] + is.Repaired[ByReplay]
	return is
}

// observe judges a message and puts it into the view, or holds it.
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

// apply puts one message's events into the view.
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
	s.count.apply(s.view, s.batch.Events)
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

// age has the view drop what has gone where no removal is announced.
func (s *source) age(now time.Time) {
	if gone := s.view.Age(now); len(gone) > 0 {
		s.blocks.Store(int64(s.view.Blocks()))
		if s.cfg.Tap != nil {
			s.cfg.Tap.Applied(s.name, gone)
		}
	}
}

// catchUp applies held messages as far as they have become the next ones.
func (s *source) catchUp() {
	for payload, ok := s.flow.next(); ok; payload, ok = s.flow.next() {
		s.apply(payload)
	}
}

// lose counts a loss for good, with which the view was emptied.
func (s *source) lose() {
	s.losses.Add(1)
	if s.cfg.Tap != nil {
		s.cfg.Tap.Lost(s.name)
	}
}

// repaired counts a gap that was filled.
func (s *source) repaired(by Method) {
	s.repairs[by].Add(1)
	s.count.methods[by].Inc()
}

// failed puts the next repair off: twice as long each time, and up to half less by chance.
func (s *source) failed(now time.Time, rng *rand.Rand) {
	wait := backoff.Backoff{Min: s.cfg.RetryMin, Max: s.cfg.RetryMax}
	s.retryAt = now.Add(wait.Delay(s.attempts, rng))
	s.attempts++
}

// retry has the next repair begin at once.
func (s *source) retry(now time.Time) { s.attempts, s.retryAt = 0, now }

// hear notes that a message came.
func (s *source) hear(now time.Time) {
	s.heard = now
	s.heardAt.Store(int64(now.Sub(s.began)) + 1)
}

// publish makes what changed visible to status. state is how far the view can be trusted by its messages.
func (s *source) publish(state State) {
	// Of blocks that do not fit, or are pieces, it is known what the engine holds, and no prompt can be looked up in it.
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
