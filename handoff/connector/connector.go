// Package connector has the transfer protocols of engines, one file each: what the legs of a round carry so that the KV
// cache that prefill computes reaches decode, what prefill's answer must hold, and which calls free what engines still
// hold. All of it is pure: the flow in handoff makes the calls.
package connector

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"

	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Connector speaks one transfer protocol of engines. All methods are pure: they write and read calls, they do not make
// them. Connectors are comparable values: two workers hand over if theirs are equal.
type Connector interface {
	// Pairs reports why a prefill and a decode worker that both speak the protocol cannot hand over all the same:
	// block sizes, releases. nil says that they can.
	Pairs(p, d *pools.Worker) error

	// Plan edits the client's body into the round's legs. With r.P nil, the KV is staged already and only the decode
	// leg is needed. Its error is an *openai.Error: the request asks for what these workers cannot do.
	Plan(r Round) (Plan, error)

	// OnPrefill reads prefill's answer. Its error says what makes the hand-off unusable; a malformed one must never
	// reach an engine, which may wait for it forever. The KV has Params all the same if they say enough to free the
	// blocks: it is to be abandoned, and never bound.
	//
	// whole says that prefill's answer is the whole answer, because generation ended with its first token: the client
	// gets it, and decode is not called. There is no KV then.
	OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error)

	// Bind adds the hand-off metadata to the decode leg of a plan that is PrefillFirst, once. It changes the list of the
	// body's segments, which is that leg's own, and no segment. Other plans carry what the legs need to find each other.
	Bind(d *upstream.Leg, kv prefill.KV)

	// Abandon makes the calls that free what engines may still hold of a round whose decode never began, or, of a plan
	// that calls both legs at once, of one that did not end well. They are made at once. kv is empty unless the plan is
	// PrefillFirst.
	Abandon(r Round, kv prefill.KV) []upstream.Leg
}

// Repeater is a connector whose Abandon names requests that an engine may not have read yet, and would run then: a call
// on a connection of its own may overtake them. The calls are made once more after a while.
type Repeater interface{ RepeatAfter() time.Duration }

// ReleasedByAny is a connector whose release is passed on to prefill's worker by any engine that speaks the protocol, one
// that prefills too: when no decode worker is left, another prefill worker makes it.
type ReleasedByAny interface{ ReleasedByAny() }

// ReportsCached is a connector whose decode engines report how many of the prompt's tokens prefill's had cached; others count
// what was transferred.
type ReportsCached interface{ ReportsCached() }

// DecodeLater is a connector whose prefill leg needs no decode worker: that may be chosen once the prompt is computed.
type DecodeLater interface{ DecodeLater() }

// Round is one attempt at a request, as a connector sees it.
type Round struct {
	// ID is what engines see as the request's id, fresh in every round: an engine may keep an earlier round's id alive
	// until a lease ends.
	ID string
	// TransferID is the same as a number from 2^42 to 2^63−1, which no client can guess.
	TransferID int64
	// Request is the client's.
	Request *openai.Request
	// TraceParent and TraceState are the client's W3C trace headers, and Forward the fields of its head that engines
	// shall see.
	TraceParent, TraceState string
	Forward                 []upstream.Field
	// IDs are the prompt's tokens, for workers that take tokens; nil if unknown.
	IDs []uint32
	// PinnedIDs are a chat's IDs as a JSON array, where the worker that computes the prompt was seen to make the same:
	// engines that take them render no template. nil leaves that to the engines. The legs of all rounds share it.
	PinnedIDs []byte
	// ShowPrompt asks the worker that computes the prompt to report its ids; see [ShowsPrompt].
	ShowPrompt bool
	// Priority is the request's where it has one: the higher is served first. Only workers whose record says that they
	// prioritize may be sent one.
	Priority *int32
	// Resume is what the round goes on with, where an answer has moved: IDs, and PinnedIDs of a chat, then have what was
	// generated of it behind the prompt. Its Prompt is nil otherwise.
	Resume openai.Resume
	// ShowIDs asks decode's engine to show the tokens that it generates.
	ShowIDs bool
	// Kept is how many tokens of the prompt the engines keep; see [models.Card.Kept].
	Kept int
	// P and D are the workers of the round, with their data-parallel ranks; P is nil if there is no prefill leg.
	P, D         *pools.Worker
	PRank, DRank int
	// DecodeLater says that the round is prefill's alone: the plan's decode leg is not used, and D stands in for the one to
	// come where something is to be released. Slice is how many of the prompt's tokens, from its beginning, are computed
	// for prefill's own cache, with nothing to hand over; 0: all, for decode.
	DecodeLater bool
	Slice       int
	// Memory is what the legs' bodies are written to; nil for memory of their own.
	Memory *Memory
	// PReannounce and DReannounce ask their engines to announce the cached blocks of the prompt that they use again.
	PReannounce, DReannounce bool
}

// Plan is what a round sends, and in which order.
type Plan struct {
	Order Order
	// Prefill is empty if the order is Alone.
	Prefill, Decode upstream.Leg
	// Attach is how long decode's call goes on after the client has left, until its answer begins: prefill's engine
	// lets its KV go only to a decode engine that has asked for it, and a call that is cut before has not. 0 cuts it at
	// once.
	Attach time.Duration
	// Once: a decode engine whose call is cut may have asked for the KV, and sees to it that prefill's lets go. Asked for
	// again, the KV that it has taken would be waited for.
	Once bool
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

// connectors by the name that a worker's record has in its field connector. One file each.
var connectors = map[string]Connector{
	"lmcache":        LMCache{},
	"sglang":         SGLang{},
	"vllm-multi":     NIXL{}, // MultiConnector: of its children NIXL hands over, any others keep KV elsewhere; their params pass along
	"vllm-nixl":      NIXL{},
	"vllm-nixl-push": NIXLPush{},
	"vllm-mooncake":  Mooncake{},
	"vllm-offload":   Offload{},

	"trtllm":           TensorRT{},
	"trtllm-gen-first": TensorRTGenerationFirst{},
}

// engines are the connectors of workers whose record names none. The simulated engine speaks vLLM's protocol.
var engines = map[string]string{
	"sglang": "sglang",
	"sim":    "vllm-nixl",
	"trtllm": "trtllm",
	"vllm":   "vllm-nixl",
}

// Names are the connectors there are, in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(connectors)) }

// Of is the connector of a worker: the one that its record names, or else its engine's. The error says why it has
// none.
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

// Check reports why a worker could not hand over to, or take over from, any other: its connector is unknown.
func Check(w *pools.Worker) error {
	_, err := Of(w)
	return err
}

// Between finds the connector for a pair. The error says why prefill and decode cannot hand over.
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
		return nil, fmt.Errorf("%s speaks %s and %s speaks %s", p.ID, cmp.Or(p.Connector, p.Engine), d.ID, cmp.Or(d.Connector, d.Engine))
	}
	return c, c.Pairs(p, d)
}

// MixesBlocks reports whether workers like this one may have another block size as prefill than as decode.
func MixesBlocks(w *pools.Worker) bool {
	c, err := Of(w)
	if err != nil {
		return false
	}
	p, d := *w, *w
	d.BlockSize = 2 * p.BlockSize
	return c.Pairs(&p, &d) == nil
}
