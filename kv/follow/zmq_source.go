package follow

import (
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/zmq"
)

// zmqSource follows a rank whose engine publishes over ZMQ: numbers without epochs, snapshots or heartbeats, and an
// optional socket that replays the last messages. Numbers begin at 0 (vLLM, SGLang) or 1; the flow's are one higher.
// Epochs are counted here: each restart of the engine begins one.
type zmqSource struct {
	*source
	replays bool // the engine has a replay socket

	epochs     uint64
	generation uint64 // counts connections and epochs: results of an earlier generation are ignored
	connected  bool
	highest    uint64    // number received live in this epoch, 0 none
	sum        uint64    // of the payload last applied: tells apart an engine and its successor, which reuses numbers
	last       time.Time // when the last message arrived
	cut        time.Time // when the last connection was lost

	// check: the connection is new. Messages are held until a replay shows whether it is the same engine, and what was
	// missed.
	check   bool
	quiet   bool // no message for a while: check whether the last one was lost
	failing bool // replays fail: continue without, and retry now and then
	empty   int  // consecutive replays without the missing messages
	asked   time.Time

	// guess: no replay could show whether the stream continues or began again. An unknown block then signals a loss.
	guess    bool
	fromZero bool // the engine numbers from 0

	// resumed is the number of a view copied from another gateway, while it is unproven that both followed the same
	// engine; else 0.
	resumed uint64

	lost recovery
}

func newZMQSource(s *source) *zmqSource {
	e := &zmqSource{source: s, replays: s.how.zmq.Replay != ""}
	s.applied = e.notice
	return e
}

func (e *zmqSource) wants() bool {
	return e.replays && e.connected && (e.flow.behind() || e.check || e.quiet || e.failing)
}

// due returns when to request a replay: for missing messages, or since the engine has been quiet.
func (e *zmqSource) due(now time.Time) (at time.Time, ok bool) {
	if e.restoring {
		return now, e.connected // later messages are held
	}
	if e.wants() {
		return e.retryAt, true
	}
	if !e.replays || !e.connected {
		return time.Time{}, false
	}
	at = e.last
	if e.asked.After(at) {
		at = e.asked
	}
	if at = at.Add(e.cfg.QuietCheck); !at.After(now) {
		e.quiet, e.retryAt = true, now
	}
	return at, true
}

// alone reports whether there are only live messages, without replays.
func (e *zmqSource) alone() bool { return !e.replays || e.failing }

func (e *zmqSource) updateState() {
	state := Live
	switch {
	case e.lost.open:
		state = Predicted
	case e.flow.epoch == 0 || e.flow.seq == 0 && (e.check || e.failing):
		state = Waiting
	case !e.connected || e.check || e.flow.behind():
		state = Recovering
	}
	e.setState(state)
}

func (e *zmqSource) reason() string {
	switch {
	case !e.replays:
		return "events were missed, and the engine has no replay socket"
	case e.failing:
		return "events were missed, and the replay socket does not answer"
	}
	return "events were missed that the engine no longer keeps, or could not be read"
}

// connect records a new connection. Messages are held until a replay shows whether it is the same engine, and what was
// missed.
func (e *zmqSource) connect(now time.Time) {
	if e.flow.epoch == 0 {
		e.begin()
	}
	e.flow.forget() // held messages may be another process's; a replay has them all
	e.generation++
	e.connected, e.check, e.last = true, true, now
	e.retry(now)
	e.updateState()
}

// disconnect records the end of the connection.
func (e *zmqSource) disconnect(now time.Time) {
	e.connected, e.cut = false, now
	e.updateState()
}

// begin empties the view for an engine's first message.
func (e *zmqSource) begin() {
	e.epochs++
	e.generation++
	e.flow.begin(e.epochs)
	e.view.Clear()
	e.highest, e.sum, e.guess, e.empty, e.resumed, e.lost = 0, 0, false, 0, 0, recovery{}
	if e.cfg.Tap != nil {
		e.cfg.Tap.Began(e.name)
	}
}

// restart begins for an engine that started again.
func (e *zmqSource) restart() {
	e.count.verdicts[newEpoch].Inc()
	e.begin()
	if e.cfg.Tap != nil {
		e.cfg.Tap.Restarted(e.name, e.cut)
	}
}

// live applies one message and reports whether it makes a replay wanted.
func (e *zmqSource) live(m zmq.Message, now time.Time) bool {
	n, wanted := m.Seq+1, e.wants()
	e.last, e.quiet = now, false
	defer e.updateState()
	if e.highest != 0 && n <= e.highest {
		if n == e.flow.seq && xxh3.Hash(m.Payload) == e.sum {
			e.count.verdicts[stale].Inc()
			return false
		}
		e.restart()
	}
	e.highest = n
	if e.resumed != 0 && e.before(n, m.Payload) {
		return false
	}
	if e.check && (e.restoring || !e.alone()) {
		if e.flow.judge(e.flow.epoch, n) == apply {
			e.flow.hold(n, m.Payload)
		}
		return e.wants() && !wanted
	}
	if e.alone() {
		e.guess = e.guess || e.check && e.flow.seq > 0
		e.countFromOne(n)
	}
	e.check = false
	behind := e.flow.behind()
	v := e.observe(e.flow.epoch, n, m.Payload)
	e.count.verdicts[v].Inc()
	if v == gap {
		if !behind {
			e.gaps.Add(1)
		}
		if e.alone() {
			e.giveUp()
		}
	}
	if e.lost.relearned(now, e.cfg.Relearn) {
		e.repaired(ByChains)
	}
	return e.wants() && !wanted
}

// countFromOne treats n as the first message if it is the engine's 1. No replay must be able to tell, nor the engine
// have begun at 0.
func (e *zmqSource) countFromOne(n uint64) {
	e.fromZero = e.fromZero || n == 1
	if e.flow.seq == 0 && n == 2 && !e.fromZero {
		e.flow.move(1)
		e.guess = true
	}
}

// notice updates the recovery after an applied message; before is the earlier tally.
func (e *zmqSource) notice(payload []byte, before view.Tally, ok bool) {
	e.sum = xxh3.Hash(payload)
	after := e.view.Tally()
	if e.lost.open {
		e.view.Uncount()
	}
	switch {
	case !ok:
		e.clear()
	case after.Cleared > before.Cleared:
		e.lost.open, e.guess = false, false // earlier losses no longer matter
	case !e.lost.open && e.guess && (after.Orphans > before.Orphans || after.Unknown > before.Unknown):
		e.clear()
	default:
		e.lost.notice(before, after, e.how.capacity)
	}
}

// clear empties the view after a loss: it may hold less than the engine, never more.
func (e *zmqSource) clear() {
	e.view.Clear()
	e.guess, e.lost = false, recovery{open: true}
	e.lose()
}

// giveUp continues without the missing messages.
func (e *zmqSource) giveUp() {
	for e.flow.behind() {
		e.clear()
		e.flow.skip()
		e.catchUp()
	}
	e.empty = 0
}
