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

// beatSlack is how many numbers a heartbeat may be behind the messages, which are sent next to it.
const beatSlack = 256

// published follows a rank over NATS. Its publisher numbers messages by epoch, sends a heartbeat every second, and gives
// messages again, or a snapshot, to subscribers that missed some.
type published struct {
	*source
	partial bool          // the publisher itself does not know all that its engine holds; see [wire.HeaderPartial]
	at      wire.Position // how far a stream had come when the publisher's epoch was this one; zero without a stream

	silent  bool // no message for SilentAfter, or the bus is away
	unheard bool // no message for PredictAfter while the bus was there

	stale    bool      // a message was applied that only a snapshot can make good
	resync   bool      // a snapshot is wanted though no message is missing
	resyncAt time.Time // but not before
	restored time.Time // when the last snapshot was applied
	lagging  time.Time // since when heartbeats are behind the view; zero while they are not
}

func newPublished(s *source) *published {
	p := &published{source: s}
	s.applied = p.notice
	return p
}

// notice marks the view stale where a message could not be read, or named blocks that follow on unknown ones.
func (p *published) notice(_ []byte, before view.Tally, ok bool) {
	p.stale = p.stale || !ok || p.view.Tally().Orphans > before.Orphans
}

// wants reports whether a repair is wanted: missing messages, or a snapshot.
func (p *published) wants() bool { return p.flow.epoch == 0 || p.flow.behind() || p.resync }

// due is when the repair that is wanted may be asked for: a resync can wait, missing messages can not.
func (p *published) due(time.Time) (at time.Time, ok bool) {
	if p.resync && p.flow.epoch != 0 && !p.flow.behind() && p.resyncAt.After(p.retryAt) {
		return p.resyncAt, true
	}
	return p.retryAt, p.wants()
}

func (p *published) publish() {
	state := Live
	switch {
	case p.unheard, p.flow.epoch != 0 && (p.partial || p.wants() && p.attempts >= maxRepairAttempts):
		state = Predicted
	case p.flow.epoch == 0:
		state = Waiting
	case p.silent:
		state = Silent
	case p.wants():
		state = Recovering
	}
	p.source.publish(state)
}

func (p *published) reason() string {
	switch {
	case p.partial:
		return "its publisher missed some of the engine's events"
	case p.unheard && p.flow.epoch == 0:
		return "no message of its publisher ever came"
	case p.unheard:
		return "no message comes from its publisher"
	}
	return "events are missing, and its publisher does not answer"
}

// take takes in a message, or a heartbeat, and reports whether a repair is wanted now that was not before.
func (p *published) take(m *nats.Msg, now time.Time) (wanted bool, err error) {
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

// message is take of a message's parts. An empty payload is a heartbeat.
func (p *published) message(epoch, seq uint64, payload []byte, partial bool, now time.Time) bool {
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
	if epoch == p.flow.epoch { // else it is the last message of a process that has ended
		p.hear(now)
	}
	began := p.flow.epoch != known
	if began { // there is a publisher to ask
		p.retry(now)
	}
	// A publisher that seemed to have ended still sends, or did so a moment ago; or it is behind the view's number: a
	// snapshot shows which process lives, and how far it has come.
	if p.stale || v == stale && epoch != p.flow.epoch || len(payload) == 0 && p.lags(seq, now) {
		p.wantResync()
	}
	p.publish()
	return p.wants() && (began || !wanted || !behind && p.flow.behind())
}

// lags reports whether a heartbeat's number is too far behind the view. A heartbeat over a stream has the number of the
// last message that the stream took: it is behind while messages are on their way, so only a lag that stays counts.
func (p *published) lags(seq uint64, now time.Time) bool {
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
func (p *published) beat(epoch, seq uint64) verdict {
	v := p.flow.beacon(epoch, seq)
	if v == newEpoch {
		p.count.verdicts[v].Inc()
		p.view.Clear()
		v = p.flow.beacon(epoch, seq)
	}
	return v
}

// superseded reports whether a message at a place of the stream is of a process that the present one came after.
// A heartbeat at the very place is not: a process that has sent nothing yet is where the one before it ended.
func (p *published) superseded(epoch uint64, at wire.Position, beat bool) bool {
	return at.Stream != 0 && epoch != p.flow.epoch && (at.Before(p.at) || at == p.at && !beat)
}

// reached notes that the publisher's epoch was this one at that place of the stream.
func (p *published) reached(epoch uint64, at wire.Position) {
	if at.Stream != 0 && epoch == p.flow.epoch && !at.Before(p.at) {
		p.at = at
	}
}

// hear notes that the publisher lives.
func (p *published) hear(now time.Time) {
	p.source.hear(now)
	p.silent, p.unheard = false, false
}

// listen notes how long no message came. The source is silent after SilentAfter, and while the bus is away; and unheard
// after PredictAfter in which the bus was there. Both last until a message comes.
func (p *published) listen(now time.Time, bus reach) {
	p.silent = p.silent || !bus.up || now.Sub(p.heard) > p.cfg.SilentAfter
	heard := p.heard
	if bus.since.After(heard) {
		heard = bus.since
	}
	p.unheard = p.unheard || bus.up && now.Sub(heard) > p.cfg.PredictAfter
	p.publish()
}

// wantResync wants a snapshot though no message is missing, but not within SnapshotEvery of the last.
func (p *published) wantResync() {
	p.stale = false
	if p.resync {
		return
	}
	p.resync = true
	p.resyncAt = p.restored.Add(p.cfg.SnapshotEvery)
}

// request asks the publisher, or the stream, for what is missing.
func (p *published) request(s *Subscriber) func(context.Context) func(time.Time) {
	from := fetcher{s.bus, s.cfg.PageTimeout, s.cfg.MaxSnapshotBytes, p.log}
	asked, missing := p.flow.horizon(), p.missing()
	return func(ctx context.Context) func(time.Time) {
		got, err := from.fetch(ctx, p.name, missing)
		return func(now time.Time) { p.answered(asked, got, err, now, s.rng) }
	}
}

// missing is what is to be asked of the publisher. What is not a gap, and a gap that messages did not fill twice, takes a
// snapshot.
func (p *published) missing() want {
	if !p.flow.behind() || p.attempts >= 2 {
		return want{all: p.flow.seq == 0 && !p.resync}
	}
	from, until := p.flow.missing()
	return want{epoch: p.flow.epoch, from: from, until: until, all: p.flow.seq == 0}
}

// answered takes in what came of a request. asked is what was known when it was made.
func (p *published) answered(asked horizon, got answer, err error, now time.Time, rng *rand.Rand) {
	if err == nil && got.history == nil { // a stream holds messages of processes that may have ended
		p.hear(now)
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
		p.attempts = attempts // an answer that brings nothing is none, or it would be asked for again and again at once
		p.failed(now, rng)
	}
	p.publish()
}

// rerun takes in messages that the publisher gave again, and reports whether any of them was still missing. They count
// for as much as when they were first sent: of an epoch that ended meanwhile none does, after Cleared those before it
// do not.
func (p *published) rerun(asked horizon, r *wire.Run, now time.Time) bool {
	news := p.takeRun(r, ByRing, now)
	if r.Ended && r.Epoch == asked.epoch {
		p.flow.ends(asked, max(r.Next()-1, p.flow.seq))
	}
	return news
}

// recall takes in what a stream has of the source from its first message on, and reports whether it was news. It is no
// publisher's word on which process there is now: where one has been heard, it counts for that one's epoch alone.
func (p *published) recall(r *wire.Run, now time.Time) bool {
	if p.flow.epoch == 0 {
		p.flow.begin(r.Epoch)
		p.view.Clear()
	}
	p.reached(r.Epoch, r.At)
	return p.takeRun(r, ByStream, now)
}

func (p *published) takeRun(r *wire.Run, by Method, now time.Time) bool {
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

// restore takes a snapshot in, unless it says less than is known already. asked is what was known when it was asked for.
func (p *published) restore(asked horizon, s *snapshot, now time.Time) bool {
	p.retry(now)
	// Where messages have brought the view to the same place meanwhile, it is not emptied for nothing.
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
	p.stale, p.resync = false, false // what a snapshot does not repair, another will not
	p.restored = now
	p.repaired(BySnapshot)
	if p.catchUp(); p.stale {
		p.wantResync()
	}
	return true
}
