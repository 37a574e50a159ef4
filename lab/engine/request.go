package engine

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/zeebo/xxh3"
)

// Request is one sequence to continue: a prompt and how its answer may end.
type Request struct {
	// ID names the sequence; no two live ones share it.
	ID string
	// Prompt is the prompt's tokens. The engine reads it until the sequence and
	// every event that shows it are gone: it must not be written to again.
	Prompt []uint32
	// PromptTokens is the prompt's length where Prompt is nil: a simulator that
	// only has Hashes spares itself the tokens. Events then carry no tokens.
	PromptTokens int
	// Hashes are the chained hashes of the prompt's full blocks (BlockHashes). Optional with Prompt.
	Hashes []uint64
	// Choice numbers the answers to one prompt (State). Usually 0.
	Choice int

	// MaxTokens ends the answer after so many tokens; 0 means at the context's end.
	MaxTokens int
	// MinTokens is how many tokens come before the end token or a stop token may end the answer.
	MinTokens int
	// IgnoreEOS never draws the end token.
	IgnoreEOS bool
	// StopTokens end the answer too, and are part of it.
	StopTokens []uint32

	// Pin keeps the blocks under a lease once the answer ends by length, for a
	// decode engine to pull (kv_transfer_params.do_remote_decode).
	Pin bool
	// Hold is how the pinned blocks wait; without meaning unless Pin is set.
	Hold Hold
	// Remote is where the prompt's blocks are to be pulled from
	// (kv_transfer_params.do_remote_prefill), nil for a local prefill.
	Remote *Remote

	// Stored is how many leading tokens of the prompt a store has; what of them is not
	// cached is loaded from there. Without meaning with Remote.
	Stored int

	// First are the answer's first tokens, which the remote engine has drawn; none to
	// draw them here. They are part of the answer.
	First []uint32

	// Script is what the answer is from its token ScriptFrom on, with its end; nil for whatever the model draws. The
	// number is below 0 where the prompt has a part of it.
	Script     []uint32
	ScriptFrom int

	// Sentences makes the answer of sentences, if the server has learnt any (Config.Sentences).
	Sentences bool

	// LoRA is the adapter's name and Salt what the client sent (cache_salt): both keep
	// equal prompts apart in the cache.
	LoRA, Salt string

	// Reannounce announces the cached prefix of the prompt when it is used again, if
	// the engine does that at all (Config.Reannounces).
	Reannounce bool

	prepared bool
	state    State
}

// Remote names the blocks that a prefill engine keeps for one request.
type Remote struct {
	EngineID  string    // of the engine that holds them
	RequestID string    // that engine's name for the finished prefill
	Host      string    // of that engine's side channel
	Port      int       // of that engine's side channel
	BlockIDs  [][]int32 // that engine's numbers of the blocks, by KV-cache group
	Cached    *int      // prompt tokens that it had cached, which count as the request's; nil: all whose KV comes count

	// Shared: RequestID is an id that prefill was given too (Hold.Shared), and the
	// blocks may not be there yet. No lease is renewed.
	Shared bool
	// Silent: an engine that gives the request up before it has asked for the blocks
	// does not have them freed, and Patience bounds the transfer too.
	Silent bool
	// PageTokens is the block size that the producer must have too; 0 for any.
	PageTokens int
	// Lost: nothing is requested, and the sequence waits for it until it is aborted.
	Lost bool
	// Lingers is how long the blocks of a sequence that has ended while it waited for the transfer are kept, unless the
	// transfer ends before: [Endless] for vLLM (finish_requests in v1/core/sched/scheduler.py frees an aborted waiter
	// when its KV has come or its load has failed), 30 s for SGLang, whose prefill must confirm that it no longer
	// writes (SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT). 0: not at all.
	Lingers time.Duration
	// Recomputes: blocks that do not arrive are computed here instead.
	Recomputes bool
	// Drained is, in a release, the sequence whose blocks are freed with the producer's answer.
	Drained string
	// Registered is how long prefill's engine keeps a Shared request; 0 for Patience.
	Registered time.Duration
	// Patience is how long a sequence with its blocks allocated waits for the
	// producer's answer; after that it ends with LoadFailed and ErrNoPrefill, or Recomputes. 0 is for ever.
	Patience time.Duration
}

// Endless is a Remote.Lingers without an end.
const Endless time.Duration = math.MaxInt64

// Errors of Core.Add. They never carry a prompt.
var (
	// ErrEmptyPrompt: there is nothing to continue.
	ErrEmptyPrompt = errors.New("engine: the prompt is empty")
	// ErrDuplicate: a live sequence has the same ID.
	ErrDuplicate = errors.New("engine: a sequence of this id is live")
	// ErrHashes: Request.Hashes does not cover the prompt's full blocks.
	ErrHashes = errors.New("engine: hashes do not match the prompt's full blocks")
)

// ContextError reports that prompt and answer exceed the context.
type ContextError struct {
	PromptTokens, MaxTokens, ContextLength int
}

func (e *ContextError) Error() string {
	return fmt.Sprintf("engine: %d prompt tokens and %d of the answer exceed the context of %d", e.PromptTokens, e.MaxTokens, e.ContextLength)
}

// Prepare computes whatever of a request costs time in proportion to its
// prompt, so that Add need not. It may run on any goroutine; cfg is the core's.
func (r *Request) Prepare(cfg *Config) {
	if r.prepared {
		return
	}
	r.prepared = true
	r.state = Begin(r.Choice).FoldAll(r.Prompt)
	if r.Prompt == nil {
		// Unknown tokens behind the last full block differ between requests, as
		// far as anybody knows; so do their answers.
		for _, h := range r.Hashes {
			r.state = r.state.Fold(uint32(h)).Fold(uint32(h >> 32))
		}
		r.state = r.state.Fold(uint32(xxh3.HashString(r.ID)))
	} else if r.Hashes == nil {
		c := cfg.withDefaults()
		r.Hashes = BlockHashes(make([]uint64, 0, len(r.Prompt)/c.BlockSize), r.Prompt, c.BlockSize, r.seed(&c))
	}
}

// scripted returns the token of the script at a place of the answer; done for the last one. Before the script there is
// none, and no end.
func (r *Request) scripted(at int) (token uint32, ok, done bool) {
	at -= r.ScriptFrom
	if r.Script == nil || at < 0 {
		return 0, false, false
	}
	at = min(at, len(r.Script)-1)
	return r.Script[at], true, at == len(r.Script)-1
}

// seed returns the start of the request's chain of block hashes.
func (r *Request) seed(cfg *Config) uint64 {
	seed := cfg.HashSeed
	if r.LoRA != "" {
		seed = xxh3.HashStringSeed(r.LoRA, seed) + 1
	}
	if r.Salt != "" {
		seed = xxh3.HashStringSeed(r.Salt, seed)
	}
	return seed
}

// length is the tokens of the prompt.
func (r *Request) length() int {
	if r.Prompt == nil {
		return r.PromptTokens
	}
	return len(r.Prompt)
}

// check rejects requests that the core cannot serve, and settles MaxTokens.
func (r *Request) check(cfg *Config) error {
	n := r.length()
	switch {
	case n < 1:
		return ErrEmptyPrompt
	case n >= cfg.ContextLength, r.MaxTokens > cfg.ContextLength-n:
		return &ContextError{PromptTokens: n, MaxTokens: max(r.MaxTokens, 1), ContextLength: cfg.ContextLength}
	}
	r.Prepare(cfg)
	if len(r.Hashes) != n/cfg.BlockSize {
		return ErrHashes
	}
	if r.MaxTokens < 1 {
		r.MaxTokens = cfg.ContextLength - n
	}
	return nil
}
