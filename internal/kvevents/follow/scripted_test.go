package follow

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// scriptedBus answers requests with one answer after another, and then for ever with the last.
type scriptedBus struct {
	wire.Bus
	Answers []*nats.Msg
}

func (b *scriptedBus) Request(context.Context, *nats.Msg) (*nats.Msg, error) {
	if len(b.Answers) == 0 {
		return nil, errors.New("nothing to answer")
	}
	m := b.Answers[0]
	if len(b.Answers) > 1 {
		b.Answers = b.Answers[1:]
	}
	return m, nil
}
