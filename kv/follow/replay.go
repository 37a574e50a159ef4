package follow

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/kv/zmq"
)

// request asks the engine for what comes after what is known.
func (e *engine) request(s *Subscriber) func(context.Context) func(time.Time) {
	at, _ := zmq.ParseEndpoint(e.how.zmq.Replay) // TrackZMQ has seen that it can be read
	turn, last := e.turn, e.since()
	limits := zmq.ReplayLimits{Silence: s.cfg.PageTimeout, Whole: s.cfg.ReplayTimeout, Bytes: s.cfg.MaxSnapshotBytes}
	return func(ctx context.Context) func(time.Time) {
		got, err := zmq.Replay(ctx, at.Offset(e.name.Rank), max(last, 1)-1, s.cfg.ZMQ, limits)
		return func(now time.Time) {
			// Of a replay that does not end, what is new counts, and the rest is asked for again.
			short := errors.Is(err, os.ErrDeadlineExceeded) && len(got) > 0 && got[len(got)-1].Seq >= e.flow.seq
			if err != nil && !short {
				e.replayFailed(turn, err, now, s.rng)
				return
			}
			if len(got) > 0 {
				e.hear(now)
			}
			e.replayed(turn, last, got, short, now)
			e.log.Debug("KV events replayed", "source", e.name, "known", last, "messages", len(got), "blocks", e.view.Blocks())
		}
	}
}

// since is the flow's number from which a replay is wanted: the last that is known, to see that it is the same, or 0 for all
// that there is.
func (e *engine) since() uint64 {
	if e.lost.open && e.failing {
		return 0
	}
	return e.flow.seq
}

// replayed takes in what the engine gave, or that it gave nothing. turn and last are what turn and since were when it was
// asked. A short replay has no end.
func (e *engine) replayed(turn, last uint64, got []zmq.Message, short bool, now time.Time) {
	defer e.publish()
	e.asked = now
	e.retry(now)
	if turn != e.turn || !e.connected {
		e.count.asked("outdated")
		return
	}
	e.count.asked("replayed")
	losses := e.losses.Load()
	e.check, e.quiet, e.failing = short, false, false
	moved := last != e.flow.seq // while a quiet engine was asked, it sent something
	switch {
	case len(got) == 0 && last == 0: // it had sent nothing when it was asked; what came since is held, or is asked for again
	case len(got) == 0 && moved:
	case len(got) == 0, last > 0 && !moved && got[0].Seq == last-1 && xxh3.Hash(got[0].Payload) != e.sum:
		// It has not come as far as was received, or sent something else then: it is another.
		e.restart()
		e.check = true
		return
	case last == 0 && (e.flow.seq == 0 || e.lost.open):
		e.rebuild(got[0].Seq)
	case got[0].Seq > e.flow.seq:
		e.tooShort(got[0].Seq)
	}
	more := e.replay(got)
	if e.catchUp(); more || !e.flow.behind() {
		e.empty = 0
	} else if e.empty++; e.empty < maxRepairAttempts {
		e.retryAt = now.Add(e.cfg.RetryMin)
	} else {
		e.giveUp()
	}
	if more && !short && !e.flow.behind() && e.losses.Load() == losses {
		e.repaired(ByReplay)
	}
}

// rebuild begins the view again for messages from the first that the engine keeps.
func (e *engine) rebuild(first uint64) {
	if e.flow.seq > 0 || e.lost.open {
		highest, reported := e.highest, e.flow.reported
		e.begin()
		e.highest, e.flow.reported = highest, reported
	}
	if first > 1 {
		e.tooShort(first)
	} else {
		e.flow.move(first)
	}
}

// tooShort goes on with the message first: the engine does not keep those before it.
func (e *engine) tooShort(first uint64) {
	e.count.asked("too_short")
	e.clear()
	e.flow.move(first)
}

// replay applies messages that a replay gave, those that are not in the view yet, and reports whether there were any. What is missing
// behind them was dropped on its way and is asked for again; what is missing before them the engine has lost itself.
func (e *engine) replay(got []zmq.Message) (more bool) {
	for _, m := range got {
		n := m.Seq + 1
		switch {
		case n <= e.flow.seq:
			continue
		case n > e.flow.seq+1 && more:
			e.flow.beacon(e.flow.epoch, n)
			return more
		case n > e.flow.seq+1:
			e.clear()
		}
		e.flow.move(n)
		e.apply(m.Payload)
		more = true
	}
	return more
}

// replayFailed notes that a replay failed. After some attempts it goes on without.
func (e *engine) replayFailed(turn uint64, err error, now time.Time, rng *rand.Rand) {
	e.count.asked("failed")
	e.failed(now, rng)
	e.log.Warn("KV events not replayed", "source", e.name, "replay", e.how.zmq.Replay, "error", err)
	if turn == e.turn && e.attempts >= maxRepairAttempts && !e.failing {
		e.failing, e.check, e.quiet = true, false, false
		if len(e.flow.held) > 0 {
			e.countFromOne(e.flow.held[0].seq)
		}
		e.catchUp()
		e.giveUp()
	}
	e.publish()
}
