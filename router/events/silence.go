package events

import (
	"fmt"
	"time"
)

// A source over NATS says something every second, if only its last number. What its silence means depends on whether
// the bus is there: if it is, the publisher is not, or cannot be heard; if it is not, nobody can be heard.

// reach is what a Subscriber knows of the way to its publishers.
type reach struct {
	up    bool      // the bus is connected
	since time.Time // when it was last found so
}

// hush notes how long nothing was heard. Silent is said after silentAfter, and while the bus is away; predicted is due
// after predictAfter in which the bus was there. Both last until something is heard.
func (f *follower) hush(now time.Time, bus reach, silentAfter, predictAfter time.Duration) {
	f.silent = f.silent || !bus.up || now.Sub(f.heard) > silentAfter
	heard := f.heard
	if bus.since.After(heard) {
		heard = bus.since
	}
	f.mute = f.mute || bus.up && now.Sub(heard) > predictAfter
	f.publish()
}

// hear notes that the publisher said something.
func (f *follower) hear(now time.Time) {
	f.heard, f.silent, f.mute = now, false, false
	f.heardAt.Store(now.UnixNano())
}

// superseded says that a message at a place of the stream is of a process that the present one came after.
// A heartbeat at the very place is not: a process that has said nothing yet is where the one before it ended.
func (f *follower) superseded(epoch uint64, at position, beat bool) bool {
	return at.stream != 0 && epoch != f.flow.Epoch() && (at.before(f.at) || at == f.at && !beat)
}

// reached notes that the publisher's epoch was this one at that place of the stream.
func (f *follower) reached(epoch uint64, at position) {
	if at.stream != 0 && epoch == f.flow.Epoch() && !at.before(f.at) {
		f.at = at
	}
}

// connected says whether the bus is, where it can tell.
func connected(b Bus) bool {
	c, tells := b.(interface{ Connected() bool })
	return !tells || c.Connected()
}

// listen looks who has fallen silent. It says nothing while messages wait: then it is we who are slow.
func (s *Subscriber) listen(now time.Time) {
	up := connected(s.bus)
	if up != s.reach.up {
		s.reach = reach{up, now}
		if up { // whoever did not answer may do so now
			for _, f := range s.followers {
				if f.trail == nil {
					f.attempts, f.retryAt = 0, now
				}
			}
		}
	}
	if up && len(s.messages) > 0 {
		return
	}
	for _, f := range s.followers {
		if f.trail == nil {
			f.hush(now, s.reach, s.cfg.SilentAfter, s.cfg.PredictAfter)
		}
	}
}

// tell has the log say when a source is lost, and when it is whole again, and passes the change on.
func (s *Subscriber) tell(f *follower, was, is State) {
	attrs := []any{"source", f.source, "transport", f.transport()}
	switch {
	case was == is: // another process began
	case is == Predicted:
		f.lostAt = time.Now()
		s.log.Warn("KV events cannot be had: the worker's cache is predicted until it is known again", append(attrs, "because", f.because())...)
	case is == Silent && s.reach.up: // else one line has said it of all
		f.hushed = true
		s.log.Warn("KV events have fallen silent: routing goes on with what is known", append(attrs, "for", time.Since(f.heard).Round(time.Millisecond))...)
	case is == Live && !f.lostAt.IsZero():
		s.log.Info("KV events are whole again: the worker's cache is known", append(attrs, "after", time.Since(f.lostAt).Round(time.Millisecond), "blocks", f.view.Blocks())...)
		f.lostAt = time.Time{}
	case is == Live && f.hushed:
		s.log.Info("KV events are heard again", attrs...)
	}
	f.hushed = f.hushed && is != Live
	if s.cfg.OnState != nil {
		s.cfg.OnState()
	}
}

// because says why a source is predicted.
func (f *follower) because() string {
	switch misfit := f.view.Misfit(); {
	case f.view.Overgrown():
		return fmt.Sprintf("its events name far more blocks than the %d that it registered", f.view.bound.registered)
	case misfit != 0 && (f.trail == nil || !f.trail.lost):
		return fmt.Sprintf("the engine's blocks have %d tokens, which neither divides the router's %d nor is a multiple of it", misfit, f.view.blockSize)
	case f.trail != nil && !f.trail.replays:
		return "events were missed, and the engine has no replay socket"
	case f.trail != nil && f.trail.failing:
		return "events were missed, and the replay socket does not answer"
	case f.trail != nil:
		return "events were missed that the engine keeps no more, or could not be read"
	case f.partial:
		return "its publisher has missed some of the engine's events itself"
	case f.mute && f.flow.Epoch() == 0:
		return "nothing was ever heard of its publisher"
	case f.mute:
		return "nothing is heard of its publisher"
	}
	return "events are missing, and its publisher does not answer"
}
