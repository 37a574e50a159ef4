package follow

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// A source over NATS sends a heartbeat every second. A long silence means that its publisher ended or is unreachable,
// unless the bus is disconnected.

// reach is the state of the bus.
type reach struct {
	up    bool      // the bus is connected
	since time.Time // when it connected
}

// connected reports whether the bus is connected, true if it cannot tell.
func connected(b wire.Bus) bool {
	c, ok := b.(interface{ Connected() bool })
	return !ok || c.Connected()
}

// listen finds silent publishers. None is silent while messages wait here: the delay is then local.
func (s *Subscriber) listen(now time.Time) {
	for _, f := range s.followers {
		f.base().age(now)
	}
	up := connected(s.bus)
	if up != s.reach.up {
		s.reach = reach{up, now}
		if up { // publishers without an answer may answer now
			for _, f := range s.followers {
				if p, ok := f.(*natsSource); ok {
					p.retry(now)
				}
			}
		}
	}
	if up && len(s.messages) > 0 {
		return
	}
	for _, f := range s.followers {
		if p, ok := f.(*natsSource); ok {
			p.listen(now, s.reach)
		}
	}
}

// report logs a loss and its repair, and calls OnState.
func (s *Subscriber) report(f follower, was, now State) {
	of := f.base()
	attrs := []any{"source", of.name, "transport", of.transport()}
	switch {
	case was == now: // another process began
	case now == Predicted:
		of.predictedSince = time.Now()
		s.log.Warn("KV events lost: predicting the worker's cache until it is resynchronised", append(attrs, "reason", reason(f))...)
	case now == Silent && s.reach.up: // otherwise one line has reported it for all
		of.silenceLogged = true
		s.log.Warn("no KV events received; routing continues with the last known state",
			append(attrs, "silent_for", time.Since(of.lastSeen).Round(time.Millisecond))...)
	case now == Live && !of.predictedSince.IsZero():
		s.log.Info("KV events repaired", append(attrs, "predicted_for", time.Since(of.predictedSince).Round(time.Millisecond),
			"blocks", of.view.Blocks())...)
		of.predictedSince = time.Time{}
	case now == Live && of.silenceLogged:
		s.log.Info("KV events received again", attrs...)
	}
	of.silenceLogged = of.silenceLogged && now != Live
	if s.cfg.OnState != nil {
		s.cfg.OnState()
	}
}

// reason returns why a source is predicted.
func reason(f follower) string {
	is := f.base()
	e, _ := f.(*zmqSource)
	switch misfit := is.view.Misfit(); {
	case is.view.Overgrown():
		return fmt.Sprintf("its events name far more blocks than the %d that it registered", is.how.capacity)
	case is.view.Pieces() != "":
		return fmt.Sprintf("its KV-cache groups (%s) hold pieces of a prompt, and none holds its blocks from the first on", is.view.Pieces())
	case misfit != 0 && (e == nil || !e.lost.open):
		return fmt.Sprintf("the engine's blocks have %d tokens, which neither divides the router's %d nor is a multiple of it",
			misfit, is.how.blockSize)
	}
	return f.reason()
}
