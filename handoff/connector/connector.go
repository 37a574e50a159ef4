// Package connector implements engines' transfer protocols, one file each: what a round's legs carry so that
// prefill's KV cache reaches decode, what prefill's answer must have, and which calls free what engines still hold.
// It is pure: handoff makes the calls.
package connector

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Connector is one transfer protocol. All methods are pure: they write and read calls without making them. Connectors
// are comparable: two workers hand over if theirs are equal.
type Connector interface {
	// Pairs reports why a prefill and a decode worker of the protocol cannot hand over, as block sizes or releases;
	// nil if they can.
	Pairs(p, d *pools.Worker) error

	// Plan edits the client's body into the round's legs. If r.P is nil, the KV is already staged and only the decode
	// leg is needed. Its error is an *openai.Error for requests that these workers cannot serve.
	Plan(r Round) (Plan, error)

	// OnPrefill reads prefill's answer. Its error is why the hand-off is unusable; a malformed one must never reach
	// an engine, which may wait for it forever. The KV then has Params if they suffice to free the blocks: release
	// it, never bind it.
	//
	// whole reports that prefill's answer is the whole answer: the client gets it, decode is not called, and there is
	// no KV.
	OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error)

	// Bind adds the hand-off metadata to the decode leg of a PrefillFirst plan, once. It changes the leg's own list
	// of segments, but no segment.
	Bind(d *http1.Leg, kv prefill.KV)

	// Release returns the calls, to be made at once, that free what engines may still hold of a round whose decode
	// never began or, if both legs run in parallel, did not end well. kv is empty unless the plan is PrefillFirst.
	Release(r Round, kv prefill.KV) []http1.Leg
}

// Repeater is a connector whose Release names requests that an engine may not have read yet, as calls on other
// connections can overtake them. The calls are repeated once after a while.
type Repeater interface{ RepeatAfter() time.Duration }

// ReleasedByAny is a connector whose release any engine of the protocol passes on to prefill's worker: with no decode
// worker left, another prefill worker makes it.
type ReleasedByAny interface{ ReleasedByAny() }

// ReportsCached is a connector whose decode engines report prefill's count of cached tokens; others count what was
// transferred.
type ReportsCached interface{ ReportsCached() }

// DecodeLater is a connector whose decode worker may be chosen once the prompt is computed.
type DecodeLater interface{ DecodeLater() }

// Round is one attempt at a request.
type Round struct {
	// ID is the request id for engines, fresh in every round: an engine may keep an earlier id alive until a lease
	// ends.
	ID string
	// TransferID is a random number from 2^42 to 2^63−1 with the same purpose.
	TransferID int64
	// Request is the client's request.
	Request *openai.Request
	// TraceParent and TraceState are W3C trace headers; Forward is the header fields to forward to engines.
	TraceParent, TraceState string
	Forward                 []http1.Field
	// IDs are the prompt's tokens, for workers that take tokens; nil if unknown.
	IDs []uint32
	// PinnedIDs are a chat's IDs as a JSON array if the worker that computes the prompt is known to produce the same:
	// engines that accept them render no template. nil leaves it to the engines. The legs of all rounds share it.
	PinnedIDs []byte
	// ShowPrompt requests the prompt's ids from the worker that computes it; see [ShowsPrompt].
	ShowPrompt bool
	// Priority is the request's, the higher first, or nil. Only workers whose record says so prioritize.
	Priority *int32
	// Resume is what the round resumes: IDs, and a chat's PinnedIDs, then have the generated tokens
	// behind the prompt. Otherwise its Prompt is nil.
	Resume openai.Resume
	// ShowIDs requests the generated token ids from decode's engine.
	ShowIDs bool
	// Kept is how many of the prompt's tokens the engines keep; see [models.Card.Kept].
	Kept int
	// P and D are the round's workers, with their data-parallel ranks; P is nil without a prefill leg.
	P, D         *pools.Worker
	PRank, DRank int
	// DecodeLater reports that the round is prefill's alone: the plan's decode leg is not used, and D stands in for
	// releases. Slice is how many leading tokens of the prompt are computed for prefill's own cache, without a
	// hand-off; 0: all, for decode.
	DecodeLater bool
	Slice       int
	// Memory is where the legs' bodies are written; nil allocates. Body is the memory of the client's body, whose parts
	// they share; nil if it is of no pool.
	Memory *Memory
	Body   *http1.Buf
	// PReannounce and DReannounce make the engines announce the cached blocks that the prompt reuses.
	PReannounce, DReannounce bool
}

// Plan is what a round sends, and in which order.
type Plan struct {
	Order Order
	// Prefill is empty if the order is Alone.
	Prefill, Decode http1.Leg
	// Attach is how long decode's call continues after the client has left, until its answer begins, since prefill's
	// engine releases its KV only to a decode engine that requests it. 0 cuts the call at once.
	Attach time.Duration
	// Once reports that a cut decode call may have requested the KV, and its engine releases prefill's; a second
	// request would wait for it.
	Once bool
}

// Order is the order of a plan's steps.
type Order uint8

// The orders of a plan's calls.
const (
	// Alone calls decode, which computes the prompt itself.
	Alone Order = iota
	// PrefillFirst calls prefill, binds its hand-off to decode, and calls decode.
	PrefillFirst
	// Together calls both at once; they find each other.
	Together
	// DecodeFirst calls prefill when decode's call has been sent.
	DecodeFirst
)

// connectors by the name in a worker's record. One file each.
var connectors = map[string]Connector{
	"lmcache":        LMCache{},
	"sglang":         SGLang{},
	"vllm-multi":     NIXL{}, // MultiConnector: its NIXL child hands over; the params of others pass along
	"vllm-nixl":      NIXL{},
	"vllm-nixl-push": NIXLPush{},
	"vllm-mooncake":  Mooncake{},
	"vllm-offload":   Offload{},

	"trtllm":           TensorRT{},
	"trtllm-gen-first": TensorRTGenerationFirst{},
}

// engines are the default connectors by engine. The simulated engine has vLLM's protocol.
var engines = map[string]string{
	"sglang": "sglang",
	"sim":    "vllm-nixl",
	"trtllm": "trtllm",
	"vllm":   "vllm-nixl",
}

// Names returns the connectors, sorted.
func Names() []string { return slices.Sorted(maps.Keys(connectors)) }

// Of returns a worker's connector: the one in its record, or else its engine's. The error is why it has none.
func Of(w *pools.Worker) (Connector, error) {
	name := cmp.Or(w.Connector, engines[w.Engine])
	if c, ok := connectors[name]; ok {
		return c, nil
	}
	if name == "" {
		return nil, fmt.Errorf("no connector hands over between workers of the engine %q", w.Engine)
	}
	return nil, fmt.Errorf("there is no connector %q: want %s", name, strings.Join(Names(), ", "))
}

// Check returns an error if the worker's connector is unknown.
func Check(w *pools.Worker) error {
	_, err := Of(w)
	return err
}

// Between returns the connector of a pair, or why the pair cannot hand over.
func Between(p, d *pools.Worker) (Connector, error) {
	c, err := Of(p)
	if err != nil {
		return nil, err
	}
	other, err := Of(d)
	switch {
	case err != nil:
		return nil, err
	case other != c:
		return nil, fmt.Errorf("%s speaks %s and %s speaks %s",
			p.ID, cmp.Or(p.Connector, p.Engine), d.ID, cmp.Or(d.Connector, d.Engine))
	}
	return c, c.Pairs(p, d)
}

// MixesBlocks reports whether prefill and decode workers like w may have different block sizes.
func MixesBlocks(w *pools.Worker) bool {
	c, err := Of(w)
	if err != nil {
		return false
	}
	p, d := *w, *w
	d.BlockSize = 2 * p.BlockSize
	return c.Pairs(&p, &d) == nil
}
