package engine

import (
	"errors"
	"math"
	"slices"
	"time"
)

// Core is the engine's scheduler and cache. It has no goroutine, no I/O and no clock, and is not safe for concurrent
// use: its owner calls Step when the time that the last Step returned has come, and after every other call. The same
// calls with the same times give the same results on every machine.
//
// Its work per step is in proportion to the batch, never to the prompts in it.
type Core struct {
	cfg   Config
	vocab Vocabulary
	cache *cache
	stats Stats

	seqs     map[string]*sequence // every live sequence
	awaited  int                  // of these, those whose producer still holds blocks for them
	waiting  line
	fetching []*sequence // in order of admission
	running  []*sequence // in order of admission: the last one is preempted first
	pins     map[string]*pin
	lapse    time.Time // no lease ends before it

	meetings  map[string]*meeting // by shared id
	expecting []*sequence         // prefills that wait for a decode engine to ask for them
	apart     time.Time           // nothing that waits for its other half gives up before it

	nic time.Time // when the NIC has carried all that it was given

	batch  []slot        // of the step in progress
	end    time.Time     // of the step in progress
	took   time.Duration // by the step in progress, or the last one
	worked time.Duration // by all steps so far
	busy   bool          // a step is in progress

	result, spare Result // being filled, and lent to the caller of the last Step
}

// slot is one sequence's part of a step.
type slot struct {
	seq    *sequence
	tokens int
}

// Result is what a Step did. Its slices are valid until the next Step; the events themselves may be kept.
type Result struct {
	// Outputs are the tokens and the ends of sequences, in batch order.
	Outputs []Output
	// Events are the cache's changes, in order.
	Events []Event
	// Fetches are the pulls to begin; Fetched or FetchFailed answers each.
	Fetches []Fetch
	// Releases are the remote blocks that their producers may free.
	Releases []Remote
	// Met are the answers to Meet.
	Met []Met
	// Next is when Step has something to do again, if nothing else is called before: zero when never.
	Next time.Time
}

// Reason is why a sequence ended.
type Reason uint8

const (
	// Unfinished: it continues.
	Unfinished Reason = iota
	// Stopped by the end token or a stop token.
	Stopped
	// Length: MaxTokens or the context's end was reached.
	Length
	// Aborted by Abort.
	Aborted
	// LoadFailed: its remote blocks could not be pulled.
	LoadFailed
)

// String is the reason as the API's finish_reason spells it.
func (r Reason) String() string {
	return [...]string{"", "stop", "length", "abort", "error"}[r]
}

// Output is one token of a sequence, or its end, or both. Each sequence that
// Add accepted ends with exactly one output whose Reason is not Unfinished.
type Output struct {
	ID string
	// Token is the new token; there is none when Reason is Aborted or LoadFailed.
	Token uint32
	// Generated counts the answer's tokens so far, this one included.
	Generated int
	// Cached is the prompt tokens that were not computed here: reused, or pulled.
	Cached int
	// Reason is not Unfinished in the sequence's last output.
	Reason Reason
	// Pinned has the location of the blocks for a decode engine, in the last output of
	// a sequence whose blocks stay pinned.
	Pinned *Pinned
	// Err is why loading failed.
	Err error
}

// Stats are counts since the core began.
type Stats struct {
	PromptTokens     uint64 // of sequences that got their first token
	GenerationTokens uint64
	PrefixQueries    uint64 // prompt tokens looked up in the cache
	PrefixHits       uint64 // of these, found
	Preemptions      uint64
	LapsedLeases     uint64 // pins not released in time
	FailedLoads      uint64
	ExternalHits     uint64 // prompt tokens whose KV came from another engine or a store
}

// NewCore makes an idle engine. The vocabulary needs at least one word.
func NewCore(cfg Config, vocab Vocabulary) (*Core, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if len(vocab.Words) == 0 {
		return nil, errors.New("engine: Vocabulary.Words is empty")
	}
	cfg = cfg.withDefaults()
	cache := newCache(cfg.TotalKVBlocks, cfg.BlockSize)
	cache.twins = cfg.Engine == "vllm"
	if cfg.SlidingWindow > 0 {
		cache.window = blocksFor(cfg.SlidingWindow-1, cfg.BlockSize)
	}
	return &Core{
		cfg: cfg, vocab: vocab,
		cache: cache,
		seqs:  make(map[string]*sequence),
		pins:  make(map[string]*pin), meetings: make(map[string]*meeting),
	}, nil
}

// Add lets a request wait for its turn. It fails with ErrEmptyPrompt, ErrDuplicate, ErrHashes, ErrTaken or a
// *ContextError; the request is then not there.
func (c *Core) Add(r Request) error {
	if _, ok := c.seqs[r.ID]; ok {
		return ErrDuplicate
	}
	if err := r.check(&c.cfg); err != nil {
		return err
	}
	s := newSequence(r)
	if s.Pin && s.Hold.Shared != "" {
		if err := c.join(s); err != nil {
			return err
		}
	}
	c.seqs[r.ID] = s
	if s.phase == waiting {
		c.waiting.pushBack(s)
	}
	if s.Remote != nil {
		c.awaited++
	}
	return nil
}

// Step ends the step in progress if it is over by now, and forms the next batch
// if none is in progress. It must not be called with a time before the last.
func (c *Core) Step(now time.Time) Result {
	c.expect(now)
	c.lapsePins(now)
	c.giveUp(now)
	c.land(now)
	begin := now
	if c.busy && !c.end.After(now) {
		c.busy = false
		c.worked += c.took
		c.finishStep(now)
		// A timer that rings late must not slow the engine: for those who go on, the next step began when this one
		// ended, unless that was longer ago than a step takes (a process that was stopped does not catch up).
		if len(c.running) > 0 && now.Sub(c.end) < c.took {
			begin = c.end
		}
	}
	if !c.busy {
		c.schedule(begin)
	}
	c.result.Next = c.next()
	c.result.Events = c.cache.log.events

	lent := c.result
	c.result, c.spare = c.spare.emptied(), lent
	c.cache.log.events = c.result.Events
	return lent
}

// Abort ends a live sequence at once, in the middle of a step too, and frees its blocks; it reports false when there is
// none of this id. (vLLM waits for the step to end: this is kinder.) What a finished prefill has pinned stays, and the
// blocks that a transfer writes to may linger.
func (c *Core) Abort(id string) bool {
	s, ok := c.seqs[id]
	if !ok || s.gone {
		return false
	}
	c.depart(s, Output{ID: id, Generated: len(s.out), Cached: max(0, s.cached), Reason: Aborted})
	return true
}

// ClearCache drops all reusable blocks, as vLLM's /reset_prefix_cache does. It
// reports false, and does nothing, while any block is in use.
func (c *Core) ClearCache() bool { return c.cache.clear() }

// Snapshot is the whole cache as stored events, parents first.
func (c *Core) Snapshot() []Event { return c.cache.snapshot() }

// Stats are the counts so far.
func (c *Core) Stats() Stats { return c.stats }

// emptied is the result's slices, ready to be filled again.
func (r Result) emptied() Result {
	clear(r.Outputs)
	clear(r.Events)
	clear(r.Fetches)
	clear(r.Releases)
	clear(r.Met)
	return Result{Outputs: r.Outputs[:0], Events: r.Events[:0], Fetches: r.Fetches[:0], Releases: r.Releases[:0], Met: r.Met[:0]}
}

// next is the time of the earliest event that needs no input.
func (c *Core) next() time.Time {
	next := earlier(c.lapse, c.apart)
	if c.busy {
		next = earlier(next, c.end)
	}
	for _, s := range c.fetching {
		next = earlier(next, s.ready)
	}
	return next
}

// finishStep counts the batch's tokens as computed and draws the next token of
// each sequence that is computed to its end.
func (c *Core) finishStep(now time.Time) {
	ends := 0 // or are staged
	for _, p := range c.batch {
		s := p.seq
		if s.phase != running {
			continue
		}
		s.computed += p.tokens
		c.index(s)
		if s.computed < s.tokens() {
			continue
		}
		if c.draw(s, now) {
			ends++
		}
	}
	clear(c.batch)
	c.batch = c.batch[:0]
	if ends > 0 {
		c.running = slices.DeleteFunc(c.running, func(s *sequence) bool { return s.phase != running })
	}
}

// draw adds one token to a sequence and reports whether that ended it. The
// caller takes ended sequences out of c.running.
func (c *Core) draw(s *sequence, now time.Time) bool {
	token, ok, _ := s.scripted(len(s.out))
	if !ok {
		eos := len(s.out) >= s.MinTokens && !s.IgnoreEOS && s.Script == nil
		if token = c.vocab.Next(s.state, eos); s.Sentences {
			token = c.vocab.sentence(s.state, s.last(), eos)
		}
	}
	return c.take(s, token, now)
}

// take adds a token to a sequence and reports whether that ended it, as draw does.
func (c *Core) take(s *sequence, token uint32, now time.Time) bool {
	if len(s.out) == 0 {
		c.stats.PromptTokens += uint64(s.length())
	}
	c.stats.GenerationTokens++
	enough := len(s.out) >= s.MinTokens
	_, _, done := s.scripted(len(s.out))
	s.out = append(s.out, token)
	s.state = s.state.Fold(token)

	o := Output{ID: s.ID, Token: token, Generated: len(s.out), Cached: s.cached}
	switch {
	case s.Pin && s.Hold.HandFirst:
		o.Reason = Length
		if s.meeting == nil || !s.meeting.unwanted {
			o.Pinned = c.pin(s, now)
			c.stage(s, o)
			return true
		}
	case done, enough && (!s.IgnoreEOS && token == c.vocab.EOS || slices.Contains(s.StopTokens, token)):
		o.Reason = Stopped
	case len(s.out) >= s.MaxTokens:
		o.Reason = Length
		if s.Pin && (s.meeting == nil || !s.meeting.unwanted) {
			o.Pinned = c.pin(s, now)
		}
	default:
		c.result.Outputs = append(c.result.Outputs, o)
		return false
	}
	c.finish(s, o)
	return true
}

// index makes the newly computed full blocks of a sequence reusable.
func (c *Core) index(s *sequence) {
	if c.cfg.NoPrefixCache {
		return
	}
	full, first := s.computed/c.cfg.BlockSize, s.indexed
	open := -1 // the event in the log that the next block extends
	for ; s.indexed < full; s.indexed++ {
		i := s.indexed
		ids := s.ids(i, c.cfg.BlockSize)
		hash, parent := s.hash(i, ids, &c.cfg), none
		if i > 0 {
			parent = s.blocks[i-1]
		}
		if s.Prompt == nil {
			ids = nil // some are not known, so none are published
		}
		block, stored := c.cache.insert(s.blocks[i], parent, hash, ids)
		s.blocks[i] = block
		if !stored {
			open = -1
			continue
		}
		if open < 0 {
			e := Event{Kind: Stored, BlockSize: c.cfg.BlockSize, LoRA: s.LoRA, Salt: s.Salt, Group: c.cache.fullGroup()}
			if i > 0 {
				e.Parent, e.HasParent = s.hashes[i-1], true
			}
			open = len(c.cache.log.events)
			c.cache.log.add(e)
		}
		s.extend(&c.cache.log.events[open], i, ids)
	}
	if c.cache.window > 0 && open >= 0 {
		c.indexWindow(s, first, open)
	}
}

// drop takes a sequence out of wherever it waits or runs.
func (c *Core) drop(s *sequence) {
	same := func(o *sequence) bool { return o == s }
	switch s.phase {
	case waiting:
		c.waiting.remove(s)
	case fetching:
		c.fetching = slices.DeleteFunc(c.fetching, same)
	case running:
		c.running = slices.DeleteFunc(c.running, same)
	case expecting:
		c.expecting = slices.DeleteFunc(c.expecting, same)
	case staged:
		if p := c.pins[s.key()]; p != nil && p.seq == s {
			c.forget(p)
		}
	}
}

// finish ends a sequence that is in no list any more (or about to be taken
// out), frees its blocks and gives the last output.
func (c *Core) finish(s *sequence, o Output) {
	c.cache.release(s.blocks)
	s.blocks = nil
	s.phase = ended
	delete(c.seqs, s.ID)
	c.letGo(s)
	if m := s.meeting; m != nil && m.seq == s {
		c.part(m, s.Hold.Deaf)
	}
	c.result.Outputs = append(c.result.Outputs, o)
}

// scaled is a modelled duration at the configured speed.
func (c *Core) scaled(d time.Duration) time.Duration {
	return time.Duration(math.Round(float64(d) / c.cfg.Speedup))
}

// earlier returns the earlier of two times; zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
