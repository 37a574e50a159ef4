package wire

import (
	"context"

	"github.com/nats-io/nats.go"
)

// Bus is what publishers and subscribers of KV events need of NATS Core. Package natsbus has the real ones.
type Bus interface {
	// Publish sends m and does not wait for anything. It keeps nothing of m.
	Publish(m *nats.Msg) error
	// Subscribe has handle called with each message on subject, which may have wildcards, one at a time and in the
	// order of each publisher, until stop is called. handle may keep the message. Where messages are dropped
	// because handle is too slow, slow is called with the number of those dropped so far.
	Subscribe(subject string, handle func(*nats.Msg), slow func(dropped int)) (stop func(), err error)
	// Request sends m and waits for one answer until ctx ends. Without a responder the error is
	// [nats.ErrNoResponders], at once.
	Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error)
}
