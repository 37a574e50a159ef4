package follow

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// A source over NATS sends a heartbeat every second. Without one for long, its publisher has ended or cannot be reached;
// but while the bus is away that is not known of any publisher.

// reach is what a Subscriber knows of the way to its publishers.
type reach struct {
	up    bool      // the bus is connected
	since time.Time // when it was last found so
}

// connected says whether the bus is, where it can tell.
func connected(b wire.Bus) bool {
	c, tells := b.(interface{ Connected() bool })
	return !tells || c.Connected()
}

// listen looks which publishers are silent. None is while messages wait here: the delay is this process's then.
func (s *Subscriber) listen(now time.Time) {
	for _, f := range s.followers {
		f.base().age(now)
	}
	up := connected(s.bus)
	if up != s.reach.up {
		s.reach = reach{up, now}
		if up { // publishers that did not answer may do so now
			for _, f := range s.followers {
				if p, ok := f.(*published); ok {
					p.retry(now)
				}
			}
		}
	}
	if up && len(s.messages) > 0 {
		return
	}
	for _, f := range s.followers {
		if p, ok := f.(*published); ok {
			p.listen(now, s.reach)
		}
	}
}

// report logs when a source is lost, and when it is repaired, and passes the change on.
func (s *Subscriber) report(f follower, was, now State) {
	of := f.base()
	attrs := []any{"source", of.name, "transport", of.transport()}
	switch {
	case was == now: // another process began
	case now == Predicted:
		of.predictedSince = time.Now()
		s.log.Warn("KV events lost: predicting the worker's cache until it is resynchronised", append(attrs, "reason", reason(f))...)
	case now == Silent && s.reach.up: // else one line has reported it for all
		of.silenceLogged = true
		s.log.Warn("no KV events received; routing continues with the last known state", append(attrs, "silent_for", time.Since(of.heard).Round(time.Millisecond))...)
	case now == Live && !of.predictedSince.IsZero():
		s.log.Info("KV events repaired", append(attrs, "predicted_for", time.Since(of.predictedSince).Round(time.Millisecond), "blocks", of.view.Blocks())...)
		of.predictedSince = time.Time{}
	case now == Live && of.silenceLogged:
		s.log.Info("KV events received again", attrs...)
	}
	of.silenceLogged = of.silenceLogged && now != Live
	if s.cfg.OnState != nil {
		s.cfg.OnState()
	}
}

// reason is why a source is predicted.
func reason(f follower) string {
	is := f.base()
	e, _ := f.(*engine)
	switch misfit := is.view.Misfit(); {
	case is.view.Overgrown():
		return fmt.Sprintf("its events name far more blocks than the %d that it registered", is.how.capacity)
	case is.view.Pieces() != "":
		return fmt.Sprintf("its KV-cache groups (%s) hold pieces of a prompt, and none holds its blocks from the first on", is.view.Pieces())
	case misfit != 0 && (e == nil || !e.lost.open):
		return fmt.Sprintf("the engine's blocks have %d tokens, which neither divides the router's %d nor is a multiple of it", misfit, is.how.blockSize)
	}
	return f.reason()
}
