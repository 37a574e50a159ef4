package engine

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"
)

// pin is the blocks of a finished prefill, held for a decode engine.
type pin struct {
	id      string
	tokens  int // whose KV is in the blocks
	blocks  []int32
	expires time.Time
	asked   bool // a decode engine has begun to pull
	first   []uint32
	cached  int // prompt tokens that were not computed here

	meeting *meeting // of the shared id, nil without one
	seq     *sequence
	last    Output // of seq, while that waits for the release; seq is nil otherwise
}

// Pinned is the blocks that a prefill engine holds for a decode engine.
type Pinned struct {
	RequestID string
	BlockIDs  []int32
	Tokens    int
	Cached    int // prompt tokens that were not computed here
}

// Fetch is a pull to begin: the shell asks the producer, then calls Fetched or FetchFailed.
type Fetch struct {
	ID     string // the sequence
	Remote Remote
	// PromptTokens is the prompt's length; Tokens of them are not cached here and have to be moved.
	PromptTokens, Tokens int
}

// Errors of Core.Fetch.
var (
	// ErrNotHeld: no blocks are pinned under this request id.
	ErrNotHeld = errors.New("engine: the request's blocks are not held here")
	// ErrMismatch: the pinned blocks are not the requested ones.
	ErrMismatch = errors.New("engine: the held blocks are not the ones asked for")
	// ErrBrokeOff: the engine that holds the blocks got the request and did not answer.
	ErrBrokeOff = errors.New("engine: the producer broke off")
)

// Fetch is the producer's half of a pull: it checks that the blocks named are pinned for the request and hold the whole
// prompt, gives the transfer of moved tokens its turn on the NIC and returns how long the NIC is busy with others
// before. The blocks stay pinned until Release.
func (c *Core) Fetch(r Remote, promptTokens, moved int, now time.Time) (wait time.Duration, err error) {
	p, ok := c.pins[r.RequestID]
	switch {
	case !ok:
		return 0, ErrNotHeld
	case p.tokens < promptTokens || len(r.BlockIDs) != 1 || !slices.Equal(r.BlockIDs[0], p.blocks):
		return 0, ErrMismatch
	}
	p.asked = true
	return c.carry(now, moved).Sub(now), nil
}

// Heartbeat renews the lease of a pinned request and reports whether there is one. However often it comes, the lease
// never reaches further than LeaseExtension from now, or its first end.
func (c *Core) Heartbeat(requestID string, now time.Time) bool {
	p, ok := c.pins[requestID]
	if ok && p.expires.Before(now.Add(c.cfg.LeaseExtension)) {
		p.expires = now.Add(c.cfg.LeaseExtension)
	}
	return ok
}

// Release frees a pinned request's blocks, which stay reusable, and reports whether there were any.
func (c *Core) Release(requestID string) bool {
	p, ok := c.pins[requestID]
	if ok {
		c.unpin(p, nil)
	}
	return ok
}

// FirstTokens sets the tokens of the answer that the producer of a fetching sequence hands over with the blocks.
// cached is how many tokens of the prompt it had, which the sequence reports then (SGLang 0.5.23,
// srt/disaggregation/decode.py, _commit_transfer_to_req). Fetched has to follow.
func (c *Core) FirstTokens(id string, tokens []uint32, cached int) {
	if s, ok := c.seqs[id]; ok && s.phase == fetching && s.ready.IsZero() && len(tokens) > 0 {
		s.First, s.handed = tokens, true
		s.cached = cached
	}
}

// Fetched tells that the producer of a fetching sequence holds its blocks and
// can begin to send after wait. The sequence runs when its transfer is over.
func (c *Core) Fetched(id string, wait time.Duration, now time.Time) {
	s, ok := c.seqs[id]
	if !ok || s.phase != fetching || !s.ready.IsZero() {
		return
	}
	moved := s.length() - s.computed
	s.ready = c.carry(now.Add(wait), moved).Add(c.transferTime(moved))
}

// FetchFailed ends a fetching sequence: its blocks cannot be pulled. (This is
// vLLM's kv_load_failure_policy "fail", its default.) One that Recomputes waits for its turn again.
func (c *Core) FetchFailed(id string, err error) {
	s, ok := c.seqs[id]
	switch {
	case !ok || s.phase != fetching:
	case s.Remote.Lingers > 0 && s.Remote.Lingers < Endless && errors.Is(err, ErrBrokeOff):
		if !s.gone {
			c.stats.FailedLoads++
			c.depart(s, Output{ID: s.ID, Reason: LoadFailed, Err: err})
		}
	case s.gone:
		c.bury(s)
	case s.Remote.Recomputes:
		c.drop(s)
		c.stats.FailedLoads++
		c.letGo(s)
		c.again(s)
	default:
		c.fail(s, err)
	}
}

// depart ends a live sequence with o, in the middle of a step too. Blocks that a transfer may still write to linger.
func (c *Core) depart(s *sequence, o Output) {
	r := s.Remote
	if s.phase != fetching || r == nil || r.Lingers == 0 {
		c.drop(s)
		c.finish(s, o)
		return
	}
	s.gone = true
	if r.Lingers < Endless { // prefill confirms that it has stopped writing, or times out
		ask := *r
		ask.Drained = s.ID
		c.result.Releases = append(c.result.Releases, ask)
		s.deadline = time.Time{}
	}
	c.result.Outputs = append(c.result.Outputs, o)
}

// AbortAll ends every live sequence with its transfer, as the end of the process does. Nothing lingers.
func (c *Core) AbortAll() {
	for id, s := range c.seqs {
		if s.Remote != nil {
			s.Remote.Lingers = 0
		}
		if s.gone {
			c.bury(s)
		} else {
			c.Abort(id)
		}
	}
}

// Drained reports that the producer of an ended sequence no longer writes.
func (c *Core) Drained(id string) {
	if s := c.seqs[id]; s != nil && s.gone {
		s.Remote.Lost = true // the producer has confirmed
		c.bury(s)
	}
}

// bury frees a sequence's lingering blocks.
func (c *Core) bury(s *sequence) {
	c.drop(s)
	c.finish(s, Output{})
	c.result.Outputs = c.result.Outputs[:len(c.result.Outputs)-1] // it has had its last
}

// Awaited are the remote requests whose leases sequences here depend on, in no
// order: those that wait for their turn and those whose blocks are on the way.
func (c *Core) Awaited() []Remote {
	rs := make([]Remote, 0, c.awaited)
	for s := c.waiting.first; s != nil; s = s.next {
		if s.Remote.renewed() {
			rs = append(rs, *s.Remote)
		}
	}
	for _, s := range c.fetching {
		if s.Remote.renewed() {
			rs = append(rs, *s.Remote)
		}
	}
	return rs
}

// renewed reports whether heartbeats keep the blocks.
func (r *Remote) renewed() bool { return r != nil && !r.Shared && !r.Lost }

// land lets the sequences run whose transfers are over. As in vLLM the last
// prompt token is computed here, for its logits; all others count as cached.
func (c *Core) land(now time.Time) {
	landed := 0
	var gone []*sequence
	for _, s := range c.fetching {
		if s.ready.IsZero() || s.ready.After(now) {
			continue
		}
		landed++
		if s.gone {
			gone = append(gone, s)
			continue
		}
		held := s.computed
		s.phase = running
		s.computed = s.tokens() - 1
		switch {
		case s.loading > 0:
			s.computed, s.loading = s.loading, 0
		case len(s.First) > 0:
			s.computed++
		}
		switch {
		case s.handed:
		case s.Remote != nil && s.Remote.Cached != nil:
			s.cached = *s.Remote.Cached
		default:
			s.cached = s.computed
		}
		c.stats.ExternalHits += uint64(s.computed - held)
		c.index(s)
		c.letGo(s)
		if !c.continues(s, now) {
			c.running = append(c.running, s)
		}
	}
	for _, s := range gone {
		c.bury(s)
	}
	if landed > 0 {
		c.fetching = slices.DeleteFunc(c.fetching, func(s *sequence) bool { return s.phase != fetching })
	}
}

// continues adds the tokens that came with a sequence's blocks to its answer, and reports whether they end it.
func (c *Core) continues(s *sequence, now time.Time) (ends bool) {
	for _, token := range s.First {
		if ends = c.take(s, token, now); ends {
			break
		}
	}
	s.First = nil
	return ends
}

// letGo queues the call that frees the producer's blocks. From here on the sequence is one as any other: if it is
// preempted, it is computed again here, as in vLLM.
func (c *Core) letGo(s *sequence) {
	if s.Remote != nil {
		if !s.Remote.Lost && (s.asked || !s.Remote.Silent) {
			c.result.Releases = append(c.result.Releases, *s.Remote)
		}
		s.Remote = nil
		c.awaited--
	}
}

// pin moves a sequence's blocks into a pin.
func (c *Core) pin(s *sequence, now time.Time) *Pinned {
	p := &pin{id: s.key(), tokens: s.computed, blocks: s.blocks, meeting: s.meeting}
	p.expires = now.Add(cmp.Or(s.Hold.For, c.cfg.Lease))
	if s.Hold.HandFirst {
		p.first, p.cached = slices.Clone(s.out), s.cached
	}
	s.blocks = nil
	c.pins[p.id] = p
	c.lapse = earlier(c.lapse, p.expires)
	if m := p.meeting; m != nil {
		m.seq, m.pin = nil, p
		if m.guest != nil {
			c.serve(m, now)
		}
	}
	return &Pinned{RequestID: p.id, BlockIDs: slices.Clone(p.blocks), Tokens: p.tokens, Cached: s.cached}
}

// key returns the key of a sequence's pinned blocks.
func (s *sequence) key() string { return cmp.Or(s.Hold.Shared, s.ID) }

// stage withholds a finished sequence's last output until its blocks are released.
func (c *Core) stage(s *sequence, o Output) {
	p := c.pins[s.key()]
	p.seq, p.last = s, o
	s.phase = staged
}

// unpin frees a pin's blocks and ends the sequence that waited for that: well if err is nil.
func (c *Core) unpin(p *pin, err error) {
	c.forget(p)
	s := p.seq
	switch {
	case s == nil:
	case err != nil:
		c.fail(s, err)
	default:
		c.finish(s, p.last)
	}
}

// forget frees a pin's blocks.
func (c *Core) forget(p *pin) {
	c.cache.release(p.blocks)
	p.blocks = nil
	delete(c.pins, p.id)
	if len(c.pins) == 0 {
		c.lapse = time.Time{}
	}
	if p.meeting != nil {
		c.part(p.meeting, false)
	}
}

// lapsePins frees what was not pulled in time. It looks only when the
// earliest lease may be over, so that pins cost a step nothing.
func (c *Core) lapsePins(now time.Time) {
	if c.lapse.IsZero() || c.lapse.After(now) {
		return
	}
	var over []*pin
	for _, p := range c.pins {
		if !p.expires.After(now) {
			over = append(over, p)
		}
	}
	// A map has no order, but the cache remembers the order of releases.
	slices.SortFunc(over, func(a, b *pin) int {
		return cmp.Or(a.expires.Compare(b.expires), cmp.Compare(a.id, b.id))
	})
	for _, p := range over {
		c.unpin(p, ErrNoDecode)
		c.stats.LapsedLeases++
	}
	c.lapse = time.Time{}
	for _, p := range c.pins {
		c.lapse = earlier(c.lapse, p.expires)
	}
}

// carry puts a transfer behind all others on the NIC and returns its beginning. A transfer without a waiting sequence
// still takes its time, as an RDMA read under way does.
func (c *Core) carry(earliest time.Time, tokens int) time.Time {
	if c.nic.Before(earliest) {
		c.nic = earliest
	}
	begin := c.nic
	c.nic = begin.Add(c.transferTime(tokens))
	return begin
}

// SetBandwidth changes the rate of the engine's NIC for transfers that begin from now on, in bytes a second.
func (c *Core) SetBandwidth(perSecond float64) { c.cfg.BandwidthBytesPerSecond = perSecond }

// transferTime is how long so many tokens occupy a NIC.
func (c *Core) transferTime(tokens int) time.Duration {
	bytes := float64(tokens) * float64(c.cfg.BytesPerToken)
	wire := time.Duration(math.Round(float64(bytes / c.cfg.BandwidthBytesPerSecond * float64(time.Second))))
	return c.scaled(c.cfg.TransferSetup + wire)
}
