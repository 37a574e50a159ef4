package handoff

import (
	"time"

	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Connector speaks one transfer protocol of engines. All methods are pure: they make and read calls, they do not make
// them.
type Connector interface {
	// Plan edits the client's body into the round's legs. With r.P nil, the KV is staged already and only the decode
	// leg is needed. Its error is an *openai.Error: the request asks for what these workers cannot do.
	Plan(r Round) (Plan, error)

	// OnPrefill reads prefill's answer. Its error says what makes the hand-off unusable; a malformed one must never
	// reach an engine, which may wait for it forever. The KV has Params all the same if they say enough to free the
	// blocks: it is to be abandoned, and never bound.
	OnPrefill(r Round, answer []byte, now time.Time) (prefill.KV, error)

	// Bind adds the hand-off metadata to the decode leg of a plan that is PrefillFirst. Other plans carry what the
	// legs need to find each other.
	Bind(d *upstream.Leg, kv prefill.KV)

	// Abandon makes the calls that free what engines may still hold of a round whose decode never began. kv is empty
	// unless the plan is PrefillFirst.
	Abandon(r Round, kv prefill.KV) []upstream.Leg
}

// Round is one attempt at a request, as a connector sees it.
type Round struct {
	// ID is what engines see as the request's id, fresh in every round: an engine may keep an earlier round's id alive
	// until a lease ends.
	ID string
	// Call is the client's.
	Call *Call
	// IDs are the prompt's tokens, for workers that take tokens; nil if unknown.
	IDs []uint32
	// Kept is how many tokens of the prompt the engines keep; see [models.Card.Kept].
	Kept int
	// P and D are the workers of the round, with their data-parallel ranks; P is nil if there is no prefill leg.
	P, D         *pools.Worker
	PRank, DRank int
	// PReannounce and DReannounce ask their engines to announce the cached blocks of the prompt that they use again.
	PReannounce, DReannounce bool
}

// Plan is what a round sends, and in which order.
type Plan struct {
	Order Order
	// Prefill is empty if the order is Alone.
	Prefill, Decode upstream.Leg
}

// Order is the order of a plan's steps.
type Order uint8

// The orders that plans can have.
const (
	// Alone: decode is called and computes the prompt itself.
	Alone Order = iota
	// PrefillFirst: prefill is called; when it has answered, what it hands over is bound to decode, and decode is
	// called.
	PrefillFirst
	// Together: both are called at once, and find each other.
	Together
	// DecodeFirst: decode is called; when the call is sent, prefill is called.
	DecodeFirst
)

// connectors by the engine that a worker registers. The simulated engine speaks vLLM's protocol.
var connectors = map[string]Connector{
	"vllm": NIXL{},
	"sim":  NIXL{},
}

// HandsOver reports whether there is a connector for pairs of that engine.
func HandsOver(engine string) bool {
	_, ok := connectors[engine]
	return ok
}

// MixesBlocks reports whether prefill and decode workers of that engine may have different block sizes. vLLM's
// NixlConnector converts between them.
func MixesBlocks(engine string) bool { return connectors[engine] == NIXL{} }

// connectorFor finds the connector for a pair; ok is false if prefill and decode do not speak the same protocol.
func connectorFor(p, d *pools.Worker) (c Connector, ok bool) {
	c, ok = connectors[p.Engine]
	return c, ok && connectors[d.Engine] == c
}
