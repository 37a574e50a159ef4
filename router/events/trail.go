package events

import (
	"time"

	"github.com/zeebo/xxh3"
)

// trail is what a follower knows, beside its [Flow], of a stream that has numbers but neither epochs nor snapshots nor
// heartbeats: an engine's own, over ZMQ. Numbers begin at 0 (vLLM, SGLang) or at 1; the Flow's are one higher, so that it
// stands at 0 before all. Epochs are counted here: a new one begins when the engine is found to have started anew.
//
// It is a core, as follower is.
type trail struct {
	replays  bool // the engine has a socket to ask for what it sent before
	capacity int  // blocks in the rank's cache; 0: not known

	epochs uint64
	turn   uint64 // counts connections and epochs: what was asked in another turn counts no more
	up     bool   // the engine is connected
	heard  uint64 // highest number heard live in this epoch, 0 none
	sum    uint64 // of the payload last applied: it tells an engine from its successor, who reuses the number
	// check says that the connection is new: whether the engine is the one known before, and what was missed, is to be
	// asked, and until then what comes is held.
	check bool
	// quiet says that nothing came for a while: whether the last message was lost is to be asked.
	quiet   bool
	failing bool // replays fail: it goes on as though there were none, and asks now and then
	lost    bool // events are missing that nobody can give any more
	clean   int  // new blocks stored, while lost, since an event named one that is not known
	// sound is since when, while lost, no block followed on one that is not known, zero if that is to begin; and retold the
	// chains since then that the engine told again, though they were known.
	sound  time.Time
	retold int
	// relearns is how long that must last for the view to count as whole again.
	relearns time.Duration
	vain     int // replays that did not bring what was missing, one after another
	asked    time.Time
	last     time.Time // when something was heard
	cut      time.Time // when the last connection was lost
	// guess says that nobody could be asked whether the stream goes on from where it was, or begins with what was heard
	// first: a block that is not known is then the sign of a loss.
	guess bool
	zero  bool // the engine is known to number from 0
}

// wants says whether a replay is wanted.
func (t *trail) wants(flow *Flow) bool {
	return t.replays && t.up && (flow.Behind() || t.check || t.quiet || t.failing)
}

// alone says that nothing but what comes live can be had.
func (t *trail) alone() bool { return !t.replays || t.failing }

func (t *trail) state(flow *Flow) State {
	switch {
	case t.lost:
		return Predicted
	case flow.Epoch() == 0 || flow.Seq() == 0 && (t.check || t.failing):
		return Waiting
	case !t.up || t.check || flow.Behind():
		return Recovering
	}
	return Live
}

// since is the number of the Flow from which a replay is wanted: the last that is known, to see that it is the same, or 0
// for all that there is.
func (t *trail) since(flow *Flow) uint64 {
	if t.lost && t.failing {
		return 0
	}
	return flow.Seq()
}

// idle is when an engine that says nothing is to be asked whether there was nothing to say; zero for never.
func (t *trail) idle(every time.Duration) time.Time {
	if !t.replays || !t.up {
		return time.Time{}
	}
	if t.asked.After(t.last) {
		return t.asked.Add(every)
	}
	return t.last.Add(every)
}

// numbered is one message of an engine, with the engine's number.
type numbered struct {
	seq     uint64
	payload []byte
}

// connected notes that the engine's events come from now on. They are held until a replay has told whether it is the
// engine known before, and what was missed.
func (f *follower) connected(now time.Time) {
	t := f.trail
	if f.flow.Epoch() == 0 {
		f.begin()
	}
	f.flow.forget() // what was held may be another process's; a replay brings all of it again
	t.turn++
	t.up, t.check, t.last = true, true, now
	f.attempts, f.retryAt = 0, now
	f.publish()
}

// disconnected notes that they do not.
func (f *follower) disconnected(now time.Time) {
	f.trail.up, f.trail.cut = false, now
	f.publish()
}

// begin empties the view for an engine's first message.
func (f *follower) begin() {
	t := f.trail
	t.epochs++
	t.turn++
	f.flow.begin(t.epochs)
	f.view.Clear()
	t.heard, t.sum, t.lost, t.clean, t.guess, t.vain = 0, 0, false, 0, false, 0
	if f.tap != nil {
		f.tap.began(f.source)
	}
}

// restart begins for an engine that began anew.
func (f *follower) restart() {
	f.count.verdicts[NewEpoch].Inc()
	f.begin()
	if f.tap != nil {
		f.tap.restarted(f.source, f.trail.cut)
	}
}

// live takes one message in and reports whether a replay is wanted now that was not before.
func (f *follower) live(m numbered, now time.Time) bool {
	t, n, wanted := f.trail, m.seq+1, f.wants()
	t.last, t.quiet = now, false
	defer f.publish()
	if t.heard != 0 && n <= t.heard {
		if n == f.flow.Seq() && xxh3.Hash(m.payload) == t.sum {
			f.count.verdicts[Stale].Inc()
			return false
		}
		f.restart()
	}
	t.heard = n
	if t.check && !t.alone() {
		if f.flow.judge(f.flow.Epoch(), n) == Apply {
			f.flow.Hold(Message{Epoch: f.flow.Epoch(), Seq: n, Payload: m.payload})
		}
		return f.wants() && !wanted
	}
	if t.alone() {
		t.guess = t.guess || t.check && f.flow.Seq() > 0
		f.countFromOne(n)
	}
	t.check = false
	behind := f.flow.Behind()
	v := f.observe(f.flow.Epoch(), n, m.payload)
	f.count.verdicts[v].Inc()
	if v == Gap {
		if !behind {
			f.gaps.Add(1)
		}
		if t.alone() {
			f.giveUp()
		}
	}
	f.relearn(now)
	f.doubt = false // a replay brings no block that was never announced
	return f.wants() && !wanted
}

// countFromOne takes n for the first number of all if it is the engine's 1, where no replay can tell and the engine was
// not heard to begin at 0.
func (f *follower) countFromOne(n uint64) {
	t := f.trail
	t.zero = t.zero || n == 1
	if f.flow.Seq() == 0 && n == 2 && !t.zero {
		f.flow.move(1)
		t.guess = true
	}
}

// followed notes what came of one message that was applied, of which before is the tally. again is how many of its blocks
// were held already, retold how many of its chains began with such.
func (f *follower) followed(payload []byte, before Tally, again, retold uint64, malformed bool) {
	t := f.trail
	if t == nil {
		return
	}
	t.sum = xxh3.Hash(payload)
	after := f.view.Tally()
	switch {
	case malformed:
		f.lose()
	case after.Cleared > before.Cleared:
		t.lost, t.guess = false, false // what came before does not matter any more
	case !t.lost && t.guess && (after.Orphans > before.Orphans || after.Unknown > before.Unknown):
		f.lose()
	case after.Orphans > before.Orphans:
		t.clean, t.retold, t.sound = 0, 0, time.Time{}
	case after.Unknown > before.Unknown:
		t.clean = 0
		t.retold += int(retold)
	default:
		t.clean += int(after.Stored - before.Stored - again)
		t.retold += int(retold)
		// A whole cache's worth was stored and nothing unknown was named: what was there before the loss has been
		// evicted, or used again and extended; either would have named it.
		if t.capacity > 0 && t.clean >= t.capacity {
			t.lost = false
		}
	}
}

// retoldEnough is how many chains an engine must have told again for it to be taken as one that tells all it uses again. Two
// prompts computed at once can store the same block twice, and look like one.
const retoldEnough = 8

// relearn counts a view that lost events as whole when the engine, asked to tell which chains it uses again, has done so
// for as long as a prediction remembers, and nothing in that time followed on a block that is not known. What has been
// asked for since is then known to the block. What has not may be missing; a prediction would know no more of it.
func (f *follower) relearn(now time.Time) {
	t := f.trail
	switch {
	case !t.lost:
	case t.sound.IsZero():
		t.sound = now
	case t.retold >= retoldEnough && now.Sub(t.sound) >= t.relearns:
		t.lost = false
		f.heal(ByChains)
	}
}

// lose empties the view because what it lacks cannot be had: it then shows less than is true and never more.
func (f *follower) lose() {
	f.view.Clear()
	t := f.trail
	t.lost, t.guess, t.clean, t.retold, t.sound = true, false, 0, 0, time.Time{}
	f.losses.Add(1)
	if f.tap != nil {
		f.tap.lost(f.source)
	}
}

// giveUp goes on without what is missing.
func (f *follower) giveUp() {
	for f.flow.Behind() {
		f.lose()
		f.flow.Skip()
		f.catchUp()
	}
	f.trail.vain = 0
}

// replayed takes in what the engine gave, or that it gave nothing. turn and last are what turn and since were when it was
// asked; again is after how long it is asked again for what it did not give.
func (f *follower) replayed(turn, last uint64, got []numbered, now time.Time, again time.Duration) {
	defer f.publish()
	t := f.trail
	t.asked, f.attempts, f.retryAt = now, 0, now
	if turn != t.turn || !t.up {
		f.count.outdated.Inc()
		return
	}
	f.count.replayed.Inc()
	losses := f.losses.Load()
	t.check, t.quiet, t.failing = false, false, false
	moved := last != f.flow.Seq() // while a quiet engine was asked, it spoke
	switch {
	case len(got) == 0 && last == 0: // it had said nothing when it was asked; what came since is held, or is asked for again
	case len(got) == 0 && moved:
	case len(got) == 0, last > 0 && !moved && got[0].seq == last-1 && xxh3.Hash(got[0].payload) != t.sum:
		// It has not come as far as was heard, or said something else then: it is another.
		f.restart()
		t.check = true
		return
	case last == 0 && (f.flow.Seq() == 0 || t.lost):
		f.rebuild(got[0].seq)
	case got[0].seq > f.flow.Seq():
		f.tooShort(got[0].seq)
	}
	from := f.flow.Seq()
	f.replay(got)
	if f.flow.Seq() > from && f.losses.Load() == losses {
		f.heal(ByReplay)
	}
	if f.catchUp(); !f.flow.Behind() {
		t.vain = 0
	} else if t.vain++; t.vain < hopeless {
		f.retryAt = now.Add(again)
	} else {
		f.giveUp()
	}
	f.doubt = false
}

// rebuild begins the view anew for messages from the first that the engine keeps.
func (f *follower) rebuild(first uint64) {
	if t := f.trail; f.flow.Seq() > 0 || t.lost {
		heard, told := t.heard, f.flow.told
		f.begin()
		t.heard, f.flow.told = heard, told
	}
	if first > 1 {
		f.tooShort(first)
	} else {
		f.flow.move(first)
	}
}

// tooShort goes on with the message first, those before which the engine does not keep.
func (f *follower) tooShort(first uint64) {
	f.count.tooShort.Inc()
	f.lose()
	f.flow.move(first)
}

// replay applies messages that a replay gave, those that are not in the view yet.
func (f *follower) replay(got []numbered) {
	for _, m := range got {
		n := m.seq + 1
		if n <= f.flow.Seq() {
			continue
		}
		if n != f.flow.Seq()+1 {
			f.lose() // the engine has lost it itself
		}
		f.flow.move(n)
		f.apply(m.payload)
	}
}

// replayFailed notes that no replay could be had. After some attempts it goes on without.
func (f *follower) replayFailed(turn uint64) {
	t := f.trail
	if turn == t.turn && f.attempts >= hopeless && !t.failing {
		t.failing, t.check, t.quiet = true, false, false
		if len(f.flow.held) > 0 {
			f.countFromOne(f.flow.held[0].Seq)
		}
		f.catchUp()
		f.giveUp()
	}
	f.publish()
}
