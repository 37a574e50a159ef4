package engine

import "time"

// schedule forms the next batch and starts its step, if anything can run.
func (c *Core) schedule(begin time.Time) {
	budget := c.cfg.MaxNumBatchedTokens
	budget, preempted := c.continueRunning(budget)
	if !preempted {
		c.admit(budget, begin)
	}
	if len(c.batch) == 0 {
		return
	}
	c.took = c.scaled(c.duration())
	c.end = begin.Add(c.took)
	c.busy = true
}

// continueRunning gives each running sequence its next tokens, in order of admission. One that finds no block takes
// them from the last admitted, which waits again and recomputes later; when that is itself, the batch is full.
func (c *Core) continueRunning(budget int) (left int, preempted bool) {
	for i := 0; i < len(c.running) && budget > 0; i++ {
		s := c.running[i]
		n := min(s.tokens()-s.computed, budget)
		for !c.reserve(s, n) {
			preempted = true
			last := c.running[len(c.running)-1]
			c.preempt(last)
			if last == s {
				return budget, true
			}
		}
		c.batch = append(c.batch, slot{s, n})
		budget -= n
	}
	return budget, preempted
}

// admit lets waiting sequences run, in order of arrival, while there are tokens in the budget, slots and blocks for all
// of their known tokens. The first that must wait makes all others wait.
//
// A sequence whose prompt is pulled from a remote engine takes its slot and its blocks here too, but no tokens. (vLLM
// gives it no slot until its blocks have come, and so can let more of them in than it can then run.)
func (c *Core) admit(budget int, now time.Time) {
	for budget > 0 && len(c.running)+len(c.fetching) < c.cfg.MaxNumSeqs {
		s := c.waiting.first
		if s == nil || !c.place(s) {
			return
		}
		c.waiting.remove(s)
		if s.Remote != nil {
			s.phase = fetching
			if s.Remote.Patience > 0 {
				s.deadline = now.Add(s.Remote.Patience)
				c.apart = earlier(c.apart, s.deadline)
			}
			s.blocks = c.cache.alloc(s.blocks, blocksFor(s.tokens(), c.cfg.BlockSize)-len(s.blocks))
			c.fetching = append(c.fetching, s)
			if s.Remote.Lost {
				continue
			}
			s.asked = true
			c.result.Fetches = append(c.result.Fetches,
				Fetch{ID: s.ID, Remote: *s.Remote, PromptTokens: s.length(), Tokens: s.tokens() - s.computed})
			continue
		}
		if c.load(s, now) {
			continue
		}
		s.phase = running
		c.running = append(c.running, s)
		n := min(s.tokens()-s.computed, budget)
		c.reserve(s, n) // place has seen that there is room
		c.batch = append(c.batch, slot{s, n})
		budget -= n
	}
}

// load begins to load from a store what that has of a sequence's prompt and the cache has not. It reports
// false if there is nothing to load.
func (c *Core) load(s *sequence, now time.Time) bool {
	missing := min(s.Stored, s.length()-1) - s.computed
	s.Stored = 0 // once only: after a preemption it is computed again
	if missing <= 0 {
		return false
	}
	s.phase = fetching
	s.blocks = c.cache.alloc(s.blocks, blocksFor(s.tokens(), c.cfg.BlockSize)-len(s.blocks))
	s.loading = s.computed + missing
	s.ready = c.carry(now, missing).Add(c.transferTime(missing))
	c.fetching = append(c.fetching, s)
	return true
}

// place refers a waiting sequence to the cached blocks of its prefix and reports true, if everything known of it fits.
// The last token is always left to compute, as its logits are not cached.
func (c *Core) place(s *sequence) bool {
	if c.cache.available() < s.needs {
		return false // as little as when it was looked at before: spare the look
	}
	reusable := s.hashes[:min(len(s.hashes), (s.tokens()-1)/c.cfg.BlockSize)]
	found, inactive := c.cache.match(reusable)
	if reach := c.cache.reach(reusable[:found]); reach < found {
		s.shared = found
		found, inactive = c.cache.match(reusable[:reach])
	}
	s.needs = blocksFor(s.tokens(), c.cfg.BlockSize) - found + inactive
	if c.cache.available() < s.needs {
		return false
	}
	s.needs = 0
	s.blocks = c.cache.take(s.blocks, reusable[:found])
	s.indexed = found
	s.computed = found * c.cfg.BlockSize
	c.reannounce(s, found)
	if s.cached < 0 {
		s.cached = s.computed
		c.stats.PrefixQueries += uint64(s.length())
		c.stats.PrefixHits += uint64(s.computed)
	}
	return true
}

// reannounce announces the cached blocks that a sequence uses again, from the
// prompt's beginning, if requested. A prompt without tokens has none.
func (c *Core) reannounce(s *sequence, found int) {
	n := min(found, len(s.Prompt)/c.cfg.BlockSize)
	if !s.Reannounce || !c.cfg.Reannounces || n == 0 {
		return
	}
	to := n * c.cfg.BlockSize
	c.cache.log.add(Event{Kind: Stored, Hashes: s.hashes[:n:n], TokenIDs: s.Prompt[:to:to], BlockSize: c.cfg.BlockSize, LoRA: s.LoRA,
		Salt: s.Salt, Group: c.cache.fullGroup()})
}

// reserve gives a sequence the blocks for its next n tokens, or reports false.
func (c *Core) reserve(s *sequence, n int) bool {
	need := blocksFor(s.computed+n, c.cfg.BlockSize) - len(s.blocks)
	if need <= 0 {
		return true
	}
	if c.cache.available() < need {
		return false
	}
	s.blocks = c.cache.alloc(s.blocks, need)
	return true
}

// preempt takes the last running sequence's blocks and puts it before all that
// wait. Its computed blocks stay reusable until another sequence needs the room.
func (c *Core) preempt(s *sequence) {
	c.running[len(c.running)-1] = nil
	c.running = c.running[:len(c.running)-1]
	c.again(s)
	c.stats.Preemptions++
}

// again has a sequence that is in no list wait for its turn, as the next one, with nothing computed.
func (c *Core) again(s *sequence) {
	c.cache.release(s.blocks)
	s.blocks = s.blocks[:0]
	s.computed, s.indexed, s.phase = 0, 0, waiting
	c.waiting.pushFront(s)
}

// duration returns the batch's time at speed 1. A single token at the end of its sequence is decoded; everything else
// is a chunk of prefill.
func (c *Core) duration() time.Duration {
	decodes, context := 0, 0
	chunks := 0.0
	for _, p := range c.batch {
		if p.tokens == 1 && p.seq.computed > 0 && p.seq.computed+1 == p.seq.tokens() {
			decodes++
			context += p.seq.tokens()
		} else {
			chunks += c.cfg.Latency.ChunkMillis(p.tokens, p.seq.computed)
		}
	}
	return c.cfg.Latency.Step(decodes, context, chunks)
}
