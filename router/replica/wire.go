package replica

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
)

//go:generate go run github.com/tinylib/msgp@v1.6.5 -io=false -tests=false -unexported -file=wire.go -o=wire_gen.go

// The arrays are of variable length: a later build may append fields, which this one skips, as it does unknown keys of
// body. A change that an earlier build would misread needs another natsbus.Version.

//msgp:vartuple Slot SlotSent Echo share head sessions binding
//msgp:shim pools.Role as:uint8 using:roleNumber/roleOf mode:convert
//msgp:limit arrays:16 maps:64

// body is the encoded body of a [Message].
type body struct {
	Epoch  uint64        `msg:"epoch"`
	Seq    uint64        `msg:"seq"`
	Shares []share       `msg:"shares,omitempty,limit=200"`
	Sends  []SlotSent    `msg:"sends,omitempty,limit=12"`
	Opened []Slot        `msg:"opened,omitempty,limit=200"`
	Heads  []head        `msg:"heads,omitempty,limit=64"`
	Bound  []sessions    `msg:"bound,omitempty,limit=512"`
	Digest uint64        `msg:"digest,omitempty"`
	Addr   string        `msg:"addr,omitempty"`
	Booked uint64        `msg:"booked,omitempty"`
	Stamp  time.Duration `msg:"stamp,omitempty"`
	Echoes []Echo        `msg:"echoes,omitempty,limit=256"`
	After  *Slot         `msg:"after,omitempty"` // Page
	Last   bool          `msg:"last,omitempty"`
}

// Slot identifies an account: a worker's rank in a pool. A slot without a worker is the room that a pool keeps for
// prompts computed elsewhere.
type Slot struct {
	Model  string
	Role   pools.Role
	Worker string
	Rank   int
}

// SlotSent is a prompt that was sent to a worker, to predict its cache. It may be lost.
type SlotSent struct {
	Slot
	Text   bool
	Hashes []uint64 `msg:",limit=4096"`
}

// Echo returns a heartbeat's stamp to its sender, to measure the delay.
type Echo struct {
	Name  string
	Stamp time.Duration // of the latest heartbeat received
	Held  time.Duration // since it arrived
}

// share is an encoded SlotShare.
type share struct {
	Slot                                                                Slot
	Requests, ActiveBlocks, PrefillTokens, Faded, Computed, FirstTokens uint32
	Left, First                                                         time.Duration
}

// head is an encoded ModelHead.
type head struct {
	Model  string
	Lane   uint64
	Retry  bool
	Strict uint32
	Key    uint64
	Tokens uint32
}

// sessions is an encoded PoolBound.
type sessions struct {
	Model    string
	Role     pools.Role
	Clock    int64
	Bindings []binding `msg:",limit=256"`
}

// binding is an encoded load.SessionBinding.
type binding struct {
	Session, Worker uint64
	Rank, Moves     uint32
	Born, Idle      int64
}
