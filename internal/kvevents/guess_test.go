package kvevents

import (
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/zmqpub"
)

func (e *zmqEngine) subscribed() {
	e.t.Helper()
	within(e.t, 10*time.Second, time.Millisecond, "subscribed", func() bool { return e.pub.Subscribers() == 1 })
}

// Without a replay socket a first message that has number 1 may be the engine's first, or not. It is not where the
// engine was heard to begin at 0, nor where what follows names blocks that nobody knows.
func TestFirstMessageLostWithoutReplay(t *testing.T) {
	t.Run("it begins at 0", func(t *testing.T) {
		e := newZMQEngine(t, 1, zmqpub.Config{})
		r := newRig(t, zmqConfig(), nil, nil)
		r.trackZMQ("w", e, 0)
		e.subscribed()
		e.publish(20)
		r.until("exact", func() bool { return r.exact(e, "w") })
		e.restart()
		e.skip(1)
		e.subscribed()
		e.publish(1)
		r.until("predicted", func() bool { s := r.status("w"); return s.Seq == 2 && s.State == follow.Predicted })
	})
	t.Run("an unknown block is named", func(t *testing.T) {
		e := newZMQEngine(t, 1, zmqpub.Config{})
		r := newRig(t, zmqConfig(), nil, nil)
		r.trackZMQ("w", e, 0)
		e.subscribed()
		e.skip(1)
		gone := e.Blocks[1]
		if err := e.pub.Publish([]wire.Event{{Kind: wire.Stored, BlockSize: 16, Hashes: []wire.Hash{77}, Tokens: make([]uint32, 16)}}); err != nil {
			t.Fatal(err)
		}
		r.until("taken for the first", func() bool { s := r.status("w"); return s.Seq == 2 && s.State == follow.Live })
		if err := e.pub.Publish([]wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{gone.Hash}}}); err != nil {
			t.Fatal(err)
		}
		r.until("predicted", func() bool { return r.status("w").State == follow.Predicted })
	})
}

// An engine without a replay socket that is restarted while nobody listens may be heard again at just the number that
// the old one would have had.
func TestRestartAtTheNextNumberWithoutReplay(t *testing.T) {
	e := newZMQEngine(t, 1, zmqpub.Config{})
	r := newRig(t, zmqConfig(), nil, nil)
	r.trackZMQ("w", e, 0)
	e.subscribed()
	e.publish(5)
	r.until("exact", func() bool { return r.exact(e, "w") })
	e.restart()
	e.skip(5)
	e.subscribed()
	if err := e.pub.Publish([]wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{e.Blocks[1].Hash}}}); err != nil {
		t.Fatal(err)
	}
	r.until("predicted", func() bool { s := r.status("w"); return s.Seq == 6 && s.State == follow.Predicted && s.Blocks == 0 })
}

// An engine that comes back at the very number it had is told by what it says there.
func TestRestartAtTheSameNumber(t *testing.T) {
	e := newZMQEngine(t, 1, zmqpub.Config{ReplayEndpoint: "tcp://*:0"})
	r := newRig(t, zmqConfig(), nil, nil)
	r.trackZMQ("w", e, 0)
	e.publish(20)
	r.until("exact", func() bool { return r.exact(e, "w") })
	epoch := r.status("w").Epoch
	e.stop()
	e.Blocks = nil
	e.start()
	e.publish(20)
	r.until("exact again", func() bool { return r.status("w").Epoch > epoch && r.exact(e, "w") })
}
