package follow

import (
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// State is the trust in a source's view.
type State uint32

const (
	Waiting    State = iota // no message yet
	Recovering              // events are missing and requested; the index has the earlier state
	Live                    // the index has the last reported state
	Predicted               // events are lost: the index is unreliable
	Silent                  // no message from the publisher, or NATS is disconnected; the index has the earlier state
)

var stateNames = []string{Waiting.String(), Recovering.String(), Live.String(), Predicted.String(), Silent.String()}

func (s State) String() string {
	return [...]string{"waiting", "recovering", "live", "predicted", "silent"}[s]
}

// Method is how a gap was repaired.
type Method uint8

const (
	ByRing     Method = iota // with messages from the publisher's ring
	ByReplay                 // with messages from a ZMQ publisher's replay
	BySnapshot               // with a snapshot of the engine's blocks
	ByChains                 // with chains that the engine re-announced; see recovery
	ByStream                 // with all messages of a durable stream
	ByPeer                   // with another gateway's view
)

// Methods are all of them.
var Methods = [...]Method{ByRing, ByReplay, BySnapshot, ByChains, ByStream, ByPeer}

func (m Method) String() string {
	return [...]string{"ring", "replay", "snapshot", "chains", "stream", "peer"}[m]
}

// SourceStatus is the state of one source in a [Subscriber].
type SourceStatus struct {
	Source wire.Source
	// Transport is "nats" or "zmq".
	Transport string
	State     State
	Epoch     uint64 // of the publisher, 0 before its first message; counted here over ZMQ
	Seq       uint64 // of the last message in the view, 0 for none; over ZMQ the engine's number plus one
	Blocks    int    // of the engine in the view
	BlockSize int    // tokens in the engine's largest block, 0 before the first

	LastSeen  time.Time // when its last message arrived, zero for never
	Applied   uint64    // messages
	Gaps      uint64    // times that messages were missing
	Snapshots uint64    // applied, or replays that filled a gap
	// Repaired counts filled gaps by [Method], the initial state included.
	Repaired    [len(Methods)]uint64
	Orphans     uint64 // blocks with an unknown parent
	Reannounced uint64 // known chains that the engine announced again from their beginning
	Losses      uint64 // permanent losses that emptied the view
}
