package decode

import "github.com/tandem-pd/tandem/internal/relay"

// Sink takes the answer for the client. One that is a relay.Sink too lets the event loop relay a stream to it.
type Sink interface {
	// Start commits status 200 and the content type, at most once and before any Write.
	Start(contentType string)
	// Write copies p, waits while the client is slow, and fails once it has gone or the call's context has ended.
	Write(p []byte) error
	// Last is Write of the answer's last bytes, which may leave together with its end.
	Last(p []byte) error
}

// Front is embedded by a Sink that stands in front of another one: it can be written to without waiting if that can.
type Front struct{ Sink }

// Polls is relay.Sink's.
func (f Front) Polls() bool {
	s, ok := f.Sink.(relay.Sink)
	return ok && s.Polls()
}

// TryWrite is relay.Sink's.
func (f Front) TryWrite(p []byte) error { return f.Sink.(relay.Sink).TryWrite(p) }

// TryFlush is relay.Sink's.
func (f Front) TryFlush() error { return f.Sink.(relay.Sink).TryFlush() }

// OnWritable is relay.Sink's.
func (f Front) OnWritable(again func()) bool { return f.Sink.(relay.Sink).OnWritable(again) }
