package handoff

import (
	"encoding/json"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// Mode is the order in which a connector's two legs are called.
type Mode uint8

// The modes a plan can have.
const (
	// Local is one leg: decode computes the prompt itself.
	Local Mode = iota
	// Relay awaits prefill's answer and hands what it says to decode.
	Relay
)

// Body is a client's request as a connector sees it.
type Body struct {
	Request *openai.Request
	// IDs are the prompt's tokens, for workers that take tokens; nil where
	// the model's tokenizer is not known.
	IDs []uint32
	// Kept is how many tokens of the prompt the engines keep. Above any prompt's
	// length it says that nothing is known to be cut.
	Kept int
}

// Attempt is one round of a request.
type Attempt struct {
	// ID is what engines see as the request's id, fresh in every round: an
	// engine may keep an earlier round's id alive until a lease ends.
	ID string
	// P and D are the workers of the round; P is nil when there is no
	// prefill leg.
	P, D *pools.Worker
	// PRank and DRank are their data-parallel ranks.
	PRank, DRank int
	// PRetell and DRetell ask their engines to announce the cached blocks of the
	// prompt that they use again.
	PRetell, DRetell bool
	// TraceParent, TraceState and Forward are passed to engines; see Call.
	TraceParent, TraceState string
	Forward                 []upstream.Field
}

// Plan is what a round will send. Decode is complete but for the KV, which
// Bind adds.
type Plan struct {
	Mode    Mode
	Prefill upstream.Leg
	Decode  upstream.Leg
}

// KV is hand-off metadata: what a prefill engine said about the KV cache it
// holds for a decode worker. To the gateway it is opaque but for what Connector
// validates, and a client can never supply it.
type KV struct {
	// Params is the JSON object as it goes to decode, at most MaxKVBytes.
	Params json.RawMessage
	// Producer and Incarnation name the process that holds the blocks.
	Producer, Incarnation string
	// Expires is when the producer's lease on the blocks ends.
	Expires time.Time
}

// MaxKVBytes bounds hand-off metadata. A block id is a few bytes, so that this
// is over a hundred thousand blocks.
const MaxKVBytes = 2 << 20

// Connector speaks one engine's transfer protocol. All methods are pure: they
// make and read calls, they do not make them.
type Connector interface {
	// Plan edits the client's body into the round's legs. With a.P nil the
	// plan is Local. Its error is an *openai.Error: the request asks for what
	// these workers cannot do.
	Plan(b Body, a Attempt) (Plan, error)

	// OnPrefill reads prefill's answer. Its error says what makes the
	// hand-off unusable; a malformed one must never reach an engine, which
	// may wait for it forever. The KV has Params all the same where they say
	// enough to free the blocks: it is to be abandoned, and never bound.
	OnPrefill(a Attempt, answer []byte, now time.Time) (KV, error)

	// Bind adds the hand-off metadata to the decode leg.
	Bind(d *upstream.Leg, kv KV)

	// Abandon makes the calls that free KV whose decode never came.
	Abandon(a Attempt, kv KV) []upstream.Leg
}

// connectors by the engine that a worker registers. The simulated engine
// speaks vLLM's protocol.
var connectors = map[string]Connector{
	"vllm": NIXL{},
	"sim":  NIXL{},
}

// HandsOver reports whether there is a connector for pairs of that engine.
func HandsOver(engine string) bool {
	_, ok := connectors[engine]
	return ok
}

// MixesBlocks reports whether prefill and decode workers of that engine may have
// different block sizes. vLLM's NixlConnector converts between them.
func MixesBlocks(engine string) bool { return connectors[engine] == NIXL{} }

// connectorFor finds the connector for a pair; ok is false where prefill and
// decode do not speak the same protocol, and the round is then Local. p is nil
// for a round with one leg, which every engine of OpenAI's API can serve.
func connectorFor(p, d *pools.Worker) (Connector, bool) {
	if p == nil {
		return NIXL{}, true
	}
	c, ok := connectors[p.Engine]
	return c, ok && connectors[d.Engine] == c
}
