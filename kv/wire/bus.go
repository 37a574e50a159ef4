package wire

import (
	"context"

	"github.com/nats-io/nats.go"
)

// Bus is what publishers and subscribers of KV events need of NATS Core. Package natsbus has the real ones.
type Bus interface {
	// Publish sends m and does not wait for anything. It keeps nothing of m.
	Publish(m *nats.Msg) error
	// Subscribe calls handle with each message on subject, which may have wildcards, one at a time and in order per
	// publisher, until stop is called. handle may retain the message. If messages are dropped because handle is too
	// slow, slow gets their number so far.
	Subscribe(subject string, handle func(*nats.Msg), slow func(dropped int)) (stop func(), err error)
	// Request sends m and waits for one answer until ctx ends. Without a responder the error is
	// [nats.ErrNoResponders], at once.
	Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error)
}
