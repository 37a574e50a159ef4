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

// request requests a replay after the last known message.
func (e *zmqSource) request(s *Subscriber) func(context.Context) func(time.Time) {
	at, _ := zmq.ParseEndpoint(e.how.zmq.Replay) // TrackZMQ has validated it
	generation, last := e.generation, e.since()
	limits := zmq.ReplayLimits{Silence: s.cfg.PageTimeout, Whole: 30 * time.Second, Bytes: s.cfg.MaxSnapshotBytes}
	return func(ctx context.Context) func(time.Time) {
		got, err := zmq.Replay(ctx, at.Offset(e.name.Rank), max(last, 1)-1, s.cfg.ZMQ, limits)
		return func(now time.Time) {
			// Of an endless replay the new messages count; the rest is requested again.
			short := errors.Is(err, os.ErrDeadlineExceeded) && len(got) > 0 && got[len(got)-1].Seq >= e.flow.seq
			if err != nil && !short {
				e.replayFailed(generation, err, now, s.rng)
				return
			}
			if len(got) > 0 {
				e.touch(now)
			}
			e.replayed(generation, last, got, short, now)
			e.log.Debug("KV events replayed", "source", e.name, "known", last, "messages", len(got), "blocks", e.view.Blocks())
		}
	}
}

// since is the flow's number to replay from: the last known, to compare it, or 0 for everything.
func (e *zmqSource) since() uint64 {
	if e.lost.open && e.failing {
		return 0
	}
	return e.flow.seq
}

// replayed applies an engine's replay, which may be empty. generation and last are generation and since at the request.
// A short replay has no end.
func (e *zmqSource) replayed(generation, last uint64, got []zmq.Message, short bool, now time.Time) {
	defer e.updateState()
	e.asked = now
	e.retry(now)
	if generation != e.generation || !e.connected {
		e.count.asked("outdated")
		return
	}
	e.count.asked("replayed")
	losses := e.losses.Load()
	e.check, e.quiet, e.failing = short, false, false
	moved := last != e.flow.seq // a quiet engine sent something during the request
	switch {
	case len(got) == 0 && last == 0: // it had sent nothing; later messages are held or requested again
	case len(got) == 0 && moved:
	case len(got) == 0, last > 0 && !moved && got[0].Seq == last-1 && xxh3.Hash(got[0].Payload) != e.sum:
		// Its number is lower than received, or its payload differs: it is another engine.
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

// rebuild restarts the view from the oldest message that the engine keeps.
func (e *zmqSource) rebuild(first uint64) {
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

// tooShort continues from the message first: the engine does not keep older ones.
func (e *zmqSource) tooShort(first uint64) {
	e.count.asked("too_short")
	e.clear()
	e.flow.move(first)
}

// replay applies replayed messages that are not in the view, and reports whether there were any. A gap behind them was
// dropped on the way and is requested again; a gap before them is lost.
func (e *zmqSource) replay(got []zmq.Message) (more bool) {
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

// replayFailed records a failed replay. After some attempts the source continues without.
func (e *zmqSource) replayFailed(generation uint64, err error, now time.Time, rng *rand.Rand) {
	e.count.asked("failed")
	e.failed(now, rng)
	e.log.Warn("KV events not replayed", "source", e.name, "replay", e.how.zmq.Replay, "error", err)
	if generation == e.generation && e.attempts >= maxRepairAttempts && !e.failing {
		e.failing, e.check, e.quiet = true, false, false
		if len(e.flow.held) > 0 {
			e.countFromOne(e.flow.held[0].seq)
		}
		e.catchUp()
		e.giveUp()
	}
	e.updateState()
}
