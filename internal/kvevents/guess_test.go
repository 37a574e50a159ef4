package kvevents

import (
	"testing"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/zmqpub"
)

// Without a replay socket a first message that has number 1 may be the engine's first, or not. It is not where the
// engine was heard to begin at 0, nor where what follows names blocks that nobody knows.
func TestFirstMessageLostWithoutReplay(t *testing.T) {
	t.Run("it begins at 0", func(t *testing.T) {
		e, r := followedZMQ(t, zmqpub.Config{})
		e.publish(20)
		r.until("exact", func() bool { return r.exact(e, "w") })
		e.restart()
		e.skip(1)
		e.subscribed()
		e.publish(1)
		r.until("predicted", func() bool { s := r.status("w"); return s.Seq == 2 && s.State == follow.Predicted })
	})
	t.Run("an unknown block is named", func(t *testing.T) {
		e, r := followedZMQ(t, zmqpub.Config{})
		e.skip(1)
		gone := e.Blocks[1]
		e.tell(wire.Event{Kind: wire.Stored, BlockSize: 16, Hashes: []wire.Hash{77}, Tokens: make([]uint32, 16)})
		r.until("taken for the first", func() bool { s := r.status("w"); return s.Seq == 2 && s.State == follow.Live })
		e.tell(wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{gone.Hash}})
		r.until("predicted", func() bool { return r.status("w").State == follow.Predicted })
	})
}

// An engine without a replay socket that is restarted while nobody listens may be heard again at just the number that
// the old one would have had.
func TestRestartAtTheNextNumberWithoutReplay(t *testing.T) {
	e, r := followedZMQ(t, zmqpub.Config{})
	e.publish(5)
	r.until("exact", func() bool { return r.exact(e, "w") })
	e.restart()
	e.skip(5)
	e.subscribed()
	e.tell(wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{e.Blocks[1].Hash}})
	r.until("predicted", func() bool { s := r.status("w"); return s.Seq == 6 && s.State == follow.Predicted && s.Blocks == 0 })
}
