package natsbus

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/guard"
)

// PendingLimits bounds the messages of a subscription that are not handled yet. Zero keeps the client's defaults
// (500,000 messages, 64 MiB); negative means no limit.
type PendingLimits struct{ Messages, Bytes int }

// OverNATS returns the bus, a [wire.Bus], of a NATS connection, which the caller closes. Make the connection with
// nats.MaxReconnects(-1): messages lost during a reconnect show as a gap.
func OverNATS(nc *nats.Conn, limits PendingLimits, log *slog.Logger) *Core {
	return &Core{nc, limits, log}
}

// Core is the bus over NATS Core.
type Core struct {
	nc     *nats.Conn
	limits PendingLimits
	log    *slog.Logger
}

// Connected reports whether messages pass now. A follow.Subscriber needs it to tell silent publishers from a lost
// server.
func (b *Core) Connected() bool { return b.nc.IsConnected() }

func (b *Core) Publish(m *nats.Msg) error { return b.nc.PublishMsg(m) }

func (b *Core) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return b.nc.RequestMsgWithContext(ctx, m)
}

func (b *Core) Subscribe(subject string, handle func(*nats.Msg), slow func(int)) (func(), error) {
	sub, err := b.nc.Subscribe(subject, func(m *nats.Msg) { guard.Do(b.log, "nats", func() { handle(m) }) })
	if err != nil {
		return nil, err
	}
	messages := cmp.Or(b.limits.Messages, nats.DefaultSubPendingMsgsLimit)
	if err := sub.SetPendingLimits(messages, cmp.Or(b.limits.Bytes, nats.DefaultSubPendingBytesLimit)); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
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
			b.log.Warn("NATS subscription not ended", "subject", subject, "error", err)
		}
	}
	return stop, nil
}
