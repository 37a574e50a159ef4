package events

import "github.com/nats-io/nats.go"

// HeaderPartial marks messages, heartbeats and snapshots of a publisher whose own knowledge of the engine has a hole: what
// is told is true as far as it goes, and cannot be relied on to be all. A subscriber that knows the header counts the
// source as [Predicted] until it is left out again; one that does not applies the message all the same.
const HeaderPartial = "Tandem-Partial"

// SetPartial says whether events were lost before they reached this Publisher, so that its mirror is not what the engine
// holds: subscribers are told with every message, and now, in case none follows. Call it from where Publish is called.
func (p *Publisher) SetPartial(on bool) {
	if p.partial.Swap(on) != on {
		p.beacon()
	}
}

// partialOf reads what mark wrote.
func partialOf(h nats.Header) bool { return h.Get(HeaderPartial) != "" }

// mark writes [HeaderPartial] where it is so.
func (p *Publisher) mark(m *nats.Msg) {
	if p.partial.Load() {
		m.Header.Set(HeaderPartial, "1")
	}
}

// claimed notes what a message at (epoch, seq) says of its publisher's knowledge; what is older than the view says
// nothing of it any more.
func (f *follower) claimed(epoch, seq uint64) {
	if f.trail == nil && epoch == f.flow.Epoch() && seq >= f.flow.Seq() {
		f.partial = f.claims
	}
}
