package follow

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// beatSlack is how many numbers a heartbeat may lag behind the messages, which travel separately.
const beatSlack = 256

// natsSource follows a rank over NATS. Its publisher numbers messages by epoch, sends a heartbeat every second, and
// answers requests for missed messages or a snapshot.
type natsSource struct {
	*source
	partial bool          // the publisher's own state is incomplete; see [wire.HeaderPartial]
	at      wire.Position // the stream's last known position with this epoch; zero without a stream

	silent bool // no message for SilentAfter, or the bus is disconnected
	absent bool // no message for PredictAfter while the bus was connected

	stale    bool      // a message was applied that only a snapshot can correct
	resync   bool      // a snapshot is wanted though no message is missing
	resyncAt time.Time // at the earliest
	restored time.Time // when the last snapshot was applied
	lagging  time.Time // when heartbeats fell behind the view; zero while they are not
}

func newNATSSource(s *source) *natsSource {
	p := &natsSource{source: s}
	s.applied = p.notice
	return p
}

// notice marks the view stale after an unreadable message or unknown parent blocks.
func (p *natsSource) notice(_ []byte, before view.Tally, ok bool) {
	p.stale = p.stale || !ok || p.view.Tally().Orphans > before.Orphans
}

// wants reports whether a repair is wanted: missing messages or a snapshot.
func (p *natsSource) wants() bool { return p.flow.epoch == 0 || p.flow.behind() || p.resync }

// due returns when the repair may be requested: a resync can wait, missing messages cannot.
func (p *natsSource) due(time.Time) (at time.Time, ok bool) {
	if p.resync && p.flow.epoch != 0 && !p.flow.behind() && p.resyncAt.After(p.retryAt) {
		return p.resyncAt, true
	}
	return p.retryAt, p.wants()
}

func (p *natsSource) updateState() {
	state := Live
	switch {
	case p.absent, p.flow.epoch != 0 && (p.partial || p.wants() && p.attempts >= maxRepairAttempts):
		state = Predicted
	case p.flow.epoch == 0:
		state = Waiting
	case p.silent:
		state = Silent
	case p.wants():
		state = Recovering
	}
	p.setState(state)
}

func (p *natsSource) reason() string {
	switch {
	case p.partial:
		return "its publisher missed some of the engine's events"
	case p.absent && p.flow.epoch == 0:
		return "its publisher never sent a message"
	case p.absent:
		return "its publisher stopped sending"
	}
	return "events are missing, and its publisher does not answer"
}

// take handles a message or heartbeat and reports whether it makes a repair wanted.
func (p *natsSource) take(m *nats.Msg, now time.Time) (wanted bool, err error) {
	epoch, seq, err := wire.Numbers(m.Header)
	if err != nil {
		return false, err
	}
	at := wire.PositionOf(m.Header)
	if p.superseded(epoch, at, len(m.Data) == 0) {
		p.count.verdicts[stale].Inc()
		return false, nil
	}
	wanted = p.message(epoch, seq, m.Data, wire.Partial(m.Header), now)
	p.reached(epoch, at)
	return wanted, nil
}

// message is take with the message's parts. An empty payload is a heartbeat.
func (p *natsSource) message(epoch, seq uint64, payload []byte, partial bool, now time.Time) bool {
	wanted, behind, known := p.wants(), p.flow.behind(), p.flow.epoch
	var v verdict
	if len(payload) == 0 {
		v = p.beat(epoch, seq)
	} else {
		v = p.observe(epoch, seq, payload)
	}
	if epoch == p.flow.epoch && seq >= p.flow.seq { // an older message does not describe the view
		p.partial = partial
	}
	if p.partial {
		p.view.Uncount()
	}
	p.count.verdicts[v].Inc()
	if v == gap && !behind {
		p.gaps.Add(1)
	}
	if epoch == p.flow.epoch { // otherwise the last message of an ended process
		p.touch(now)
	}
	began := p.flow.epoch != known
	if began { // there is a publisher to request from
		p.retry(now)
	}
	// A publisher that seemed to have ended still sends, or it is behind the view: a snapshot shows which process
	// lives, and its number.
	if p.stale || v == stale && epoch != p.flow.epoch || len(payload) == 0 && p.lags(seq, now) {
		p.wantResync()
	}
	p.updateState()
	return p.wants() && (began || !wanted || !behind && p.flow.behind())
}

// lags reports whether a heartbeat's number stays too far behind the view. Over a stream, a heartbeat has the number
// that the stream has acknowledged, so a short lag is normal.
func (p *natsSource) lags(seq uint64, now time.Time) bool {
	if seq+beatSlack >= p.flow.seq {
		p.lagging = time.Time{}
		return false
	}
	if p.lagging.IsZero() {
		p.lagging = now
	}
	return p.at.Stream == 0 || now.Sub(p.lagging) >= p.cfg.SnapshotEvery
}

// beat judges a heartbeat.
func (p *natsSource) beat(epoch, seq uint64) verdict {
	v := p.flow.beacon(epoch, seq)
	if v == newEpoch {
		p.count.verdicts[v].Inc()
		p.view.Clear()
		v = p.flow.beacon(epoch, seq)
	}
	return v
}

// superseded reports whether a message at a stream position is from a process before the present one. A heartbeat at
// exactly that position is not: a process that has sent nothing starts where the one before ended.
func (p *natsSource) superseded(epoch uint64, at wire.Position, beat bool) bool {
	return at.Stream != 0 && epoch != p.flow.epoch && (at.Before(p.at) || at == p.at && !beat)
}

// reached records the stream position of the publisher's epoch.
func (p *natsSource) reached(epoch uint64, at wire.Position) {
	if at.Stream != 0 && epoch == p.flow.epoch && !at.Before(p.at) {
		p.at = at
	}
}

// touch records a sign of life of the publisher.
func (p *natsSource) touch(now time.Time) {
	p.source.touch(now)
	p.silent, p.absent = false, false
}

// listen updates silent and absent. The source is silent after SilentAfter or while the bus is disconnected, and
// absent after PredictAfter with the bus connected, both until the next message.
func (p *natsSource) listen(now time.Time, bus reach) {
	p.silent = p.silent || !bus.up || now.Sub(p.lastSeen) > p.cfg.SilentAfter
	last := p.lastSeen
	if bus.since.After(last) {
		last = bus.since
	}
	p.absent = p.absent || bus.up && now.Sub(last) > p.cfg.PredictAfter
	p.updateState()
}

// wantResync requests a snapshot without a missing message, at most once per SnapshotEvery.
func (p *natsSource) wantResync() {
	p.stale = false
	if p.resync {
		return
	}
	p.resync = true
	p.resyncAt = p.restored.Add(p.cfg.SnapshotEvery)
}

// request requests the missing messages from the publisher or the stream.
func (p *natsSource) request(s *Subscriber) func(context.Context) func(time.Time) {
	from := fetcher{s.bus, s.cfg.PageTimeout, s.cfg.MaxSnapshotBytes, p.log}
	asked, missing := p.flow.horizon(), p.missing()
	return func(ctx context.Context) func(time.Time) {
		got, err := from.fetch(ctx, p.name, missing)
		return func(now time.Time) { p.answered(asked, got, err, now, s.rng) }
	}
}

// missing returns the request to make. A resync, or a gap that messages failed to fill twice, needs a snapshot.
func (p *natsSource) missing() want {
	if !p.flow.behind() || p.attempts >= 2 {
		return want{all: p.flow.seq == 0 && !p.resync}
	}
	from, until := p.flow.missing()
	return want{epoch: p.flow.epoch, from: from, until: until, all: p.flow.seq == 0}
}

// answered applies the result of a request; asked is the horizon at its start.
func (p *natsSource) answered(asked horizon, got answer, err error, now time.Time, rng *rand.Rand) {
	if err == nil && got.history == nil { // a stream may hold messages of ended processes
		p.touch(now)
	}
	attempts, epoch, seq := p.attempts, p.flow.epoch, p.flow.seq
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		p.count.asked("unanswered")
	case err != nil:
		p.count.asked("failed")
		p.log.Warn("KV snapshot not received", "source", p.name, "error", err)
	case got.run != nil && p.rerun(asked, got.run, now):
		p.count.asked("ring")
		p.log.Debug("KV events received again", "source", p.name, "from", got.run.First, "messages", len(got.run.Messages))
	case got.history != nil && p.recall(got.history, now):
		p.count.asked("recalled")
		p.log.Debug("KV events read from the stream", "source", p.name, "messages", len(got.history.Messages), "blocks", p.view.Blocks())
	case got.snapshot != nil && p.restore(asked, got.snapshot, now):
		p.count.asked("restored")
		p.log.Debug("KV snapshot applied", "source", p.name, "seq", got.snapshot.seq, "blocks", p.view.Blocks())
	default:
		p.count.asked("outdated")
	}
	if moved := p.flow.epoch != epoch || p.flow.seq != seq; err != nil || !moved && p.flow.behind() {
		p.attempts = attempts // an empty answer counts as none, or it would be repeated at once forever
		p.failed(now, rng)
	}
	p.updateState()
}

// rerun applies messages sent again, and reports whether any was missing. They count like the originals: none of an
// ended epoch, and none before a Cleared.
func (p *natsSource) rerun(asked horizon, r *wire.Run, now time.Time) bool {
	news := p.takeRun(r, ByRing, now)
	if r.Ended && r.Epoch == asked.epoch {
		p.flow.ends(asked, max(r.Next()-1, p.flow.seq))
	}
	return news
}

// recall applies a stream's history of the source and reports whether it was news. A stream does not show which process
// lives now: once the publisher has sent a message, only its epoch counts.
func (p *natsSource) recall(r *wire.Run, now time.Time) bool {
	if p.flow.epoch == 0 {
		p.flow.begin(r.Epoch)
		p.view.Clear()
	}
	p.reached(r.Epoch, r.At)
	return p.takeRun(r, ByStream, now)
}

func (p *natsSource) takeRun(r *wire.Run, by Method, now time.Time) bool {
	if r.Epoch != p.flow.epoch {
		return false
	}
	before := p.flow.seq
	for i, payload := range r.Messages {
		p.observe(r.Epoch, r.First+uint64(i), payload)
	}
	if p.flow.seq == before {
		return false
	}
	p.retry(now)
	p.repaired(by)
	if p.stale {
		p.wantResync()
	}
	return true
}

// restore applies a snapshot, unless the view has more. asked is the horizon of the request.
func (p *natsSource) restore(asked horizon, s *snapshot, now time.Time) bool {
	p.retry(now)
	// If messages reached the same state meanwhile, the view is kept.
	known := s.epoch == p.flow.epoch && s.seq == p.flow.seq && !p.wants()
	if known || !p.flow.restore(asked, s.epoch, s.seq) {
		return false
	}
	p.reached(s.epoch, s.at)
	p.view.Clear()
	p.partial = s.partial
	for _, page := range s.pages {
		p.apply(page)
	}
	p.stale, p.resync = false, false // a second snapshot would repair nothing else
	p.restored = now
	p.repaired(BySnapshot)
	if p.catchUp(); p.stale {
		p.wantResync()
	}
	return true
}
