package events

import (
	"context"
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go"
)

// Bus is what this package needs of NATS Core. [OverNATS] is the real one, [MemoryBus] one for tests.
type Bus interface {
	// Publish sends m and does not wait for anything. It keeps nothing of m.
	Publish(m *nats.Msg) error
	// Subscribe has handle called with each message on subject, which may have wildcards, one at a time and in the
	// order of each publisher, until stop is called. handle may keep the message. Where messages are dropped
	// because handle is too slow, slow is called with the number of those dropped so far.
	Subscribe(subject string, handle func(*nats.Msg), slow func(dropped int)) (stop func(), err error)
	// Request sends m and waits for one answer until ctx ends. With nobody there to answer the error is
	// [nats.ErrNoResponders], at once.
	Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error)
}

// PendingLimits bound what a subscription holds that was not handled yet. Zero keeps the client's defaults (500,000
// messages, 64 MiB), negative is no limit.
type PendingLimits struct {
	Messages int
	Bytes    int
}

// OverNATS is the Bus of a NATS connection, which stays the caller's to close. The connection should be made with
// nats.MaxReconnects(-1): what is lost while it is away shows as a gap. It has a method Connected, by which a
// [Subscriber] tells silent publishers from a server that is away.
func OverNATS(nc *nats.Conn, limits PendingLimits, log *slog.Logger) Bus {
	return &natsBus{nc, limits, log}
}

type natsBus struct {
	nc     *nats.Conn
	limits PendingLimits
	log    *slog.Logger
}

// Connected says whether messages pass now.
func (b *natsBus) Connected() bool { return b.nc.IsConnected() }

func (b *natsBus) Publish(m *nats.Msg) error { return b.nc.PublishMsg(m) }

func (b *natsBus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return b.nc.RequestMsgWithContext(ctx, m)
}

func (b *natsBus) Subscribe(subject string, handle func(*nats.Msg), slow func(int)) (func(), error) {
	sub, err := b.nc.Subscribe(subject, handle)
	if err != nil {
		return nil, err
	}
	if b.limits != (PendingLimits{}) {
		messages, bytes := b.limits.Messages, b.limits.Bytes
		if messages == 0 {
			messages = nats.DefaultSubPendingMsgsLimit
		}
		if bytes == 0 {
			bytes = nats.DefaultSubPendingBytesLimit
		}
		if err := sub.SetPendingLimits(messages, bytes); err != nil {
			return nil, errors.Join(err, sub.Unsubscribe())
		}
	}
	// The client closes the channel with the subscription, but not with the connection.
	changed := sub.StatusChanged(nats.SubscriptionSlowConsumer)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case _, open := <-changed:
				if !open {
					return
				}
			}
			if dropped, err := sub.Dropped(); err == nil {
				slow(dropped)
			}
		}
	}()
	stop := func() {
		close(done)
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) &&
			!errors.Is(err, nats.ErrBadSubscription) {
			b.log.Warn("NATS subscription could not be ended", "subject", subject, "error", err)
		}
	}
	return stop, nil
}
