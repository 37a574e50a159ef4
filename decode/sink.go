package decode

import "github.com/tandem-pd/tandem/internal/http1"

// Sink writes the answer to the client. If it is a relay.Sink too, the event loop relays streams to it.
type Sink interface {
	// Start sets status 200 and the content type, at most once and before any Write.
	Start(contentType string)
	// Write copies p and blocks while the client is slow. It fails once the client is gone or the call's context has
	// ended.
	Write(p []byte) error
	// Last is Write for the answer's last bytes, which may be sent together with its end.
	Last(p []byte) error
}

// Front is embedded by a Sink that wraps another one. It keeps the inner Sink's relay.Sink.
type Front struct{ Sink }

// Polls implements relay.Sink.
func (f Front) Polls() bool {
	s, ok := f.Sink.(http1.Sink)
	return ok && s.Polls()
}

// TryWrite implements relay.Sink.
func (f Front) TryWrite(p []byte) error { return f.Sink.(http1.Sink).TryWrite(p) }

// TryFlush implements relay.Sink.
func (f Front) TryFlush() error { return f.Sink.(http1.Sink).TryFlush() }

// OnWritable implements relay.Sink.
func (f Front) OnWritable(again func()) bool { return f.Sink.(http1.Sink).OnWritable(again) }
