package follow

import (
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// State is how far a source's view can be trusted.
type State uint32

const (
	Waiting    State = iota // no message of its publisher has come yet
	Recovering              // events are missing and asked for; the index holds what was known before
	Live                    // the index holds what the publisher last reported
	Predicted               // events are lost: what is indexed cannot be relied on
	Silent                  // no message comes from the publisher, or NATS is away; the index holds what was known before
)

// stateNames are the words of all states.
var stateNames = []string{Waiting.String(), Recovering.String(), Live.String(), Predicted.String(), Silent.String()}

func (s State) String() string {
	return [...]string{"waiting", "recovering", "live", "predicted", "silent"}[s]
}

// Method is how a gap was filled.
type Method uint8

const (
	ByRing     Method = iota // with the messages, out of the publisher's ring
	ByReplay                 // with the messages, out of the replay of an engine that publishes over ZMQ
	BySnapshot               // with a snapshot of what the publisher's engine held
	ByChains                 // with the chains, of an engine that re-announces what it uses; see recovery
	ByStream                 // with the messages, from the first on, out of a durable stream
	ByPeer                   // with the view of another gateway
)

// Methods are all of them.
var Methods = [...]Method{ByRing, ByReplay, BySnapshot, ByChains, ByStream, ByPeer}

func (m Method) String() string {
	return [...]string{"ring", "replay", "snapshot", "chains", "stream", "peer"}[m]
}

// SourceStatus is what a [Subscriber] knows of one source.
type SourceStatus struct {
	Source wire.Source
	// Transport is "nats" or "zmq".
	Transport string
	State     State
	Epoch     uint64 // of the publisher, 0 before its first message; over ZMQ counted by the subscriber
	Seq       uint64 // of the last message in the view; over ZMQ one more than the engine's number, so that 0 is none
	Blocks    int    // of the engine's, in the view
	BlockSize int    // tokens in the largest of the engine's blocks so far, 0 before the first

	Heard     time.Time // when its last message came, zero for never
	Applied   uint64    // messages
	Gaps      uint64    // times that messages were found missing
	Snapshots uint64    // applied, or replays that brought what was missing
	// Repaired counts the gaps that were filled, by [Method], the state at the beginning included.
	Repaired    [len(Methods)]uint64
	Orphans     uint64 // blocks whose parent was unknown
	Reannounced uint64 // chains that the engine announced again, from their beginning, though they were known
	Losses      uint64 // times that messages were lost for good and the view was emptied
}
