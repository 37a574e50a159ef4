package events

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/router/index"
)

// State is how far a source's view can be trusted.
type State uint32

const (
	Waiting    State = iota // nothing was heard of its publisher yet
	Recovering              // events are missing and asked for; what is indexed is what was known before
	Live                    // the index is what the publisher last said
	Predicted               // events are missing that cannot be had, now or ever: nothing that is indexed can be relied on
	Silent                  // nothing is heard of the publisher, or NATS is away; what is indexed is what was known before
)

// states are all of them.
var states = [...]State{Waiting, Recovering, Live, Predicted, Silent}

func (s State) String() string {
	return [...]string{"waiting", "recovering", "live", "predicted", "silent"}[s]
}

// Way is how what was missing of a source was had.
type Way uint8

const (
	ByRing     Way = iota // the messages themselves, out of the publisher's ring
	ByReplay              // the messages themselves, of an engine that publishes over ZMQ
	BySnapshot            // what the publisher's engine held, in their place
	ByChains              // the chains themselves, of an engine that tells what it uses again; see trail.relearn
	ByStream              // the messages themselves, from the first on, out of a durable stream
)

// Ways are all of them.
var Ways = [...]Way{ByRing, ByReplay, BySnapshot, ByChains, ByStream}

func (w Way) String() string { return [...]string{"ring", "replay", "snapshot", "chains", "stream"}[w] }

// hopeless is after how many attempts in vain what is missing counts as not to be had.
const hopeless = 4

// beatSlack is how many numbers a heartbeat may be late by, as it is sent beside the messages that it counts.
const beatSlack = 256

// silentAfter is the default of [SubscriberConfig.SilentAfter].
const silentAfter = 5 * time.Second

// SourceStatus is what a [Subscriber] knows of one source.
type SourceStatus struct {
	Source Source
	// Transport is "nats" or "zmq".
	Transport string
	State     State
	Epoch     uint64 // of the publisher, 0 when none was heard of; over ZMQ counted by the subscriber
	Seq       uint64 // of the last message in the view; over ZMQ one more than the engine's number, so that 0 is none
	Blocks    int    // of the engine's, in the view
	BlockSize int    // tokens in the largest of the engine's blocks so far, 0 before the first

	Heard     time.Time // when something was heard of it last, zero for never
	Applied   uint64    // messages
	Gaps      uint64    // times that messages were found missing
	Snapshots uint64    // applied, or replays that brought what was missing
	// Healed is how often what was missing was had, by [Way], the state at the beginning included.
	Healed  [len(Ways)]uint64
	Orphans uint64 // blocks whose parent was unknown
	Retold  uint64 // chains that the engine told again, from their beginning, though they were known
	Losses  uint64 // times that messages were lost for good and the view was emptied
}

// follower follows one source. It is a core: the Subscriber's loop alone calls it, with the time, and does what it
// asks for.
type follower struct {
	source Source
	owner  index.Owner
	count  *poolCounters

	flow  Flow
	view  *View
	batch *Batch // shared by all followers, for use within one call
	trail *trail // what is known beside of a stream over ZMQ; nil over NATS
	zmq   ZMQ    // where that comes from

	partial bool // what is heard is not all that the publisher's engine holds; see HeaderPartial
	claims  bool // so says the message that is taken in
	tap     tap  // hears what happens to the view; may be nil

	onState func(was, is State) // called when the state or the epoch has changed; may be nil

	heard    time.Time // when the publisher said something, or was begun to be followed
	silent   bool      // that was too long ago, or the bus is away
	mute     bool      // so long ago that what it said counts no more
	hushed   bool      // the log has said that it is silent
	lostAt   time.Time // since when it is predicted; zero when it is not, or was made whole since
	at       position  // how far a stream had come when the publisher's epoch was this one; zero without a stream
	fetching bool      // a snapshot is on its way
	doubt    bool      // something was applied that only a snapshot can make good
	again    bool      // a snapshot is wanted though no message is missing
	attempts int       // in vain, one after another
	retryAt  time.Time // nothing is asked for before
	againAt  time.Time // no snapshot is asked for before of which no message is missing
	restored time.Time // when the last snapshot was applied

	// To be read while the loop works.
	state                       atomic.Uint32
	epoch, seq                  atomic.Uint64
	blocks, blockSize, heardAt  atomic.Int64 // heardAt in nanoseconds since 1970, 0 for never
	applied, gaps, orphansSoFar atomic.Uint64
	losses, retold              atomic.Uint64
	healed                      [len(Ways)]atomic.Uint64
}

// newFollower returns a follower whose view is empty. kvBlocks is how many blocks the rank registered, 0 if that is not known.
func newFollower(source Source, idx *index.Index, blockSize, kvBlocks int, batch *Batch, count *poolCounters) *follower {
	owner := idx.Owner(source.Worker, source.Rank)
	f := &follower{
		source: source, owner: owner, view: NewView(idx, owner, blockSize), batch: batch, count: count,
	}
	f.view.Register(kvBlocks)
	return f
}

func (f *follower) transport() string {
	if f.trail != nil {
		return "zmq"
	}
	return "nats"
}

func (f *follower) status() SourceStatus {
	s := SourceStatus{
		Source: f.source, Transport: f.transport(), State: State(f.state.Load()), Epoch: f.epoch.Load(), Seq: f.seq.Load(),
		Blocks: int(f.blocks.Load()), Applied: f.applied.Load(), Gaps: f.gaps.Load(),
		Orphans: f.orphansSoFar.Load(), Retold: f.retold.Load(), Losses: f.losses.Load(),
	}
	if at := f.heardAt.Load(); at != 0 {
		s.Heard = time.Unix(0, at)
	}
	for w := range s.Healed {
		s.Healed[w] = f.healed[w].Load()
	}
	s.Snapshots = s.Healed[BySnapshot] + s.Healed[ByReplay]
	return s
}

// message takes one message in and reports whether a snapshot is wanted now that was not before. An empty payload is
// a heartbeat. least is the time between two snapshots that no gap asks for.
func (f *follower) message(epoch, seq uint64, payload []byte, now time.Time, least time.Duration) bool {
	wanted, behind, known := f.wants(), f.flow.Behind(), f.flow.Epoch()
	v := f.observe(epoch, seq, payload)
	f.claimed(epoch, seq)
	f.count.verdicts[v].Inc()
	if v == Gap && !behind {
		f.gaps.Add(1)
	}
	if epoch == f.flow.Epoch() { // else it is the last word of a process that has ended
		f.hear(now)
	}
	began := f.flow.Epoch() != known
	if began { // there is someone to ask
		f.attempts, f.retryAt = 0, now
	}
	// A publisher that was thought to be gone still talks, or did so a moment ago; or it is not as far as the view is said to
	// be: a snapshot tells who is there, and how far.
	if f.doubt || v == Stale && (epoch != f.flow.Epoch() || len(payload) == 0 && seq+beatSlack < f.flow.Seq()) {
		f.ask(least)
	}
	f.publish()
	return f.wants() && (began || !wanted || !behind && f.flow.Behind())
}

func (f *follower) observe(epoch, seq uint64, payload []byte) Verdict {
	beacon := len(payload) == 0 && f.trail == nil
	judge := func(clears bool) Verdict {
		if beacon {
			return f.flow.Beacon(epoch, seq)
		}
		return f.flow.Observe(epoch, seq, clears)
	}
	v := judge(false)
	if v == NewEpoch {
		f.count.verdicts[v].Inc()
		f.view.Clear()
		v = judge(false)
	}
	if v == Gap && !beacon && DecodeBatch(f.batch, payload) == nil && f.batch.HasCleared() {
		v = judge(true)
	}
	switch {
	case v == Apply:
		f.apply(payload)
		f.catchUp()
	case v == Gap && !beacon:
		f.flow.Hold(Message{Epoch: epoch, Seq: seq, Payload: payload})
	}
	return v
}

// apply puts one message's events into the view.
func (f *follower) apply(payload []byte) {
	before, again, retold, over := f.view.Tally(), f.view.again, f.view.retold, f.view.Overgrown()
	if err := DecodeBatch(f.batch, payload); err != nil {
		f.count.malformed.Inc()
		f.doubt = true
		f.followed(payload, before, 0, 0, true)
		return
	}
	f.count.unreadable.Add(float64(f.batch.Skipped))
	f.count.fields.Add(float64(f.batch.SkippedFields))
	f.count.apply(f.view, f.batch.Events)
	f.applied.Add(1)
	after := f.view.Tally()
	f.count.count(before, after)
	f.orphansSoFar.Add(after.Orphans - before.Orphans)
	f.doubt = f.doubt || after.Orphans > before.Orphans
	switch now := f.view.Overgrown(); {
	case !now && f.tap != nil:
		f.tap.applied(f.source, f.batch.Events)
	case now && !over:
		f.losses.Add(1)
		if f.tap != nil {
			f.tap.lost(f.source)
		}
	}
	f.followed(payload, before, f.view.again-again, f.view.retold-retold, false)
}

// catchUp applies held messages as far as they have become the next ones.
func (f *follower) catchUp() {
	for m, ok := f.flow.Next(); ok; m, ok = f.flow.Next() {
		f.apply(m.Payload)
	}
}

// heal notes how something that was missing was had.
func (f *follower) heal(by Way) {
	f.healed[by].Add(1)
	f.count.healed[by].Inc()
}

// missing is what is to be asked of the publisher. What is not a gap, and a gap that messages did not fill twice, takes a
// snapshot.
func (f *follower) missing() want {
	if !f.flow.Behind() || f.attempts >= 2 {
		return want{all: f.flow.Seq() == 0 && !f.again}
	}
	from, until := f.flow.Missing()
	return want{epoch: f.flow.Epoch(), from: from, until: until, all: f.flow.Seq() == 0}
}

// rerun takes in messages that the publisher gave again, and reports whether any of them was still missing. They count
// for as much as when they were first sent: of an epoch that ended meanwhile none does, after Cleared those before it
// do not.
func (f *follower) rerun(asked horizon, r *run, now time.Time, least time.Duration) bool {
	news := f.takeRun(r, ByRing, now, least)
	if r.ended && r.epoch == asked.epoch {
		f.flow.ends(asked, max(r.next()-1, f.flow.Seq()))
	}
	return news
}

// recall takes in what a stream has of the source from its first message on, and reports whether it was news. It is no
// publisher's word on which process there is now: where one has been heard, it counts for that one's epoch alone.
func (f *follower) recall(r *run, now time.Time, least time.Duration) bool {
	if f.flow.Epoch() == 0 {
		f.flow.begin(r.epoch)
		f.view.Clear()
	}
	f.reached(r.epoch, r.at)
	return f.takeRun(r, ByStream, now, least)
}

func (f *follower) takeRun(r *run, way Way, now time.Time, least time.Duration) bool {
	if r.epoch != f.flow.Epoch() {
		return false
	}
	before := f.flow.Seq()
	for i, payload := range r.messages {
		f.observe(r.epoch, r.first+uint64(i), payload)
	}
	if f.flow.Seq() == before {
		return false
	}
	f.attempts, f.retryAt = 0, now
	f.heal(way)
	if f.doubt {
		f.ask(least)
	}
	return true
}

// restore takes a snapshot in, unless it says less than is known already. asked is what was known when it was asked for.
func (f *follower) restore(asked horizon, s *snapshot, now time.Time, least time.Duration) bool {
	f.attempts, f.retryAt = 0, now
	if !f.flow.Restore(asked, s.epoch, s.seq) {
		return false
	}
	f.reached(s.epoch, s.at)
	f.view.Clear()
	f.partial = s.partial
	for _, page := range s.pages {
		f.apply(page)
	}
	f.doubt, f.again = false, false // what a snapshot does not mend, another will not
	f.restored = now
	f.heal(BySnapshot)
	if f.catchUp(); f.doubt {
		f.ask(least)
	}
	return true
}

// ask wants a snapshot though no message is missing, but not within least of the last.
func (f *follower) ask(least time.Duration) {
	f.doubt = false
	if f.again {
		return
	}
	f.again = true
	f.againAt = f.restored.Add(least)
}

// due is when what is wanted may be asked for: a doubt can wait, what is missing can not.
func (f *follower) due() time.Time {
	if f.again && f.flow.Epoch() != 0 && !f.flow.Behind() && f.againAt.After(f.retryAt) {
		return f.againAt
	}
	return f.retryAt
}

// wants says whether a snapshot is wanted, or a replay.
func (f *follower) wants() bool {
	if f.trail != nil {
		return f.trail.wants(&f.flow)
	}
	return f.flow.Epoch() == 0 || f.flow.Behind() || f.again
}

// failed puts the next attempt off: twice as long each time, between lo and hi, and up to half less by chance.
func (f *follower) failed(now time.Time, lo, hi time.Duration, rng *rand.Rand) {
	wait := hi
	if f.attempts < 16 {
		wait = min(hi, lo<<f.attempts)
	}
	f.attempts++
	f.retryAt = now.Add(wait - time.Duration(rng.Int64N(int64(wait)/2+1)))
}

// publish makes what changed visible to status.
func (f *follower) publish() {
	state := Live
	switch {
	case f.trail != nil:
		state = f.trail.state(&f.flow)
	case f.mute, f.flow.Epoch() != 0 && (f.partial || f.wants() && f.attempts >= hopeless):
		state = Predicted
	case f.flow.Epoch() == 0:
		state = Waiting
	case f.silent:
		state = Silent
	case f.wants():
		state = Recovering
	}
	// Of a misfit it is known what the engine holds, and no prompt can be looked up in it.
	if state == Live && (f.view.Misfit() != 0 || f.view.Overgrown()) {
		state = Predicted
	}
	was, known := State(f.state.Swap(uint32(state))), f.epoch.Swap(f.flow.Epoch())
	if was != state && f.tap != nil {
		f.tap.stands(f.source, state)
	}
	f.seq.Store(f.flow.Seq())
	f.blocks.Store(int64(f.view.Blocks()))
	f.blockSize.Store(int64(f.view.largest))
	f.retold.Store(f.view.retold)
	if (was != state || known != f.flow.Epoch()) && f.onState != nil {
		f.onState(was, state)
	}
}
