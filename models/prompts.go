package models

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// Prompt is a prompt's token ids. The zero value has unknown tokens.
type Prompt struct {
	// IDs may be shared with other requests: they must not be written to.
	IDs []uint32

	by    *Language // that computed them, nil if from elsewhere
	kind  uint64    // of the request
	dated bool      // they depend on the time
	kept  *answer   // if the whole prompt is cached
	in    *prompts
}

// JSON returns the ids as a JSON array, which must not be written to.
func (p Prompt) JSON() []byte {
	if p.kept == nil {
		return openai.AppendIDs(nil, p.IDs)
	}
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	if p.kept.json == nil {
		before, common := p.in.grownFrom(p.kept)
		p.in.mu.Unlock() // others need not wait; doing it twice is harmless
		ids := idsJSON(p.kept, before, common)
		p.in.mu.Lock()
		if p.kept.json == nil {
			p.kept.json = slices.Clip(ids)
			p.in.grow(p.kept, cap(ids))
		}
	}
	return p.kept.json
}

// hashes returns the sequence hashes of the full blocks, which must not be written to.
func (p Prompt) hashes(blockSize int, seed uint64) []uint64 {
	if p.kept == nil {
		return tokens.SequenceHashes(nil, p.IDs, blockSize, seed)
	}
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	for i := range p.kept.chains {
		if c := &p.kept.chains[i]; c.blockSize == blockSize && c.seed == seed {
			return c.hashes
		}
	}
	p.in.mu.Unlock()
	hashes := tokens.SequenceHashes(nil, p.IDs, blockSize, seed)
	p.in.mu.Lock()
	if len(p.kept.chains) < maxChains {
		p.in.chained(p.kept, chain{blockSize, seed, hashes})
	}
	return hashes
}

// chain is the sequence hashes of a prompt in blocks of one size, for one adapter and cache salt.
type chain struct {
	blockSize int
	seed      uint64
	hashes    []uint64
}

const (
	// maxChains is how many chains of one prompt are kept: prefill's and decode's blocks, for two salts.
	maxChains = 4
	// minWhole is the shortest body whose prompt is cached: a shorter one is tokenized as fast as found.
	minWhole = 4 << 10
	// wholeShare: one part in so many of a language's memory is for whole prompts, the rest for their parts.
	wholeShare = 4
)

// prompts caches the tokens of long prompts by their input: a repeated one costs a hash of its bytes. It is safe for
// concurrent use.
type prompts struct {
	seed uint64

	mu sync.Mutex // guards all below, and the answers in it
	remembered
}

// newPrompts returns a cache of up to limit bytes.
func newPrompts(limit int64) *prompts {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	return &prompts{seed: binary.LittleEndian.Uint64(seed[:]), remembered: remembered{limit: limit}}
}

// takes reports whether a request's prompt may be cached.
func (p *prompts) takes(req *openai.Request) bool { return p.limit > 0 && len(req.Raw) >= minWhole }

// find returns a cached prompt. One whose template read the clock is valid while it would render the same.
func (p *prompts) find(key askKey, now func() time.Time) (*answer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.get(key)
	if !ok {
		return nil, false
	}
	for _, d := range a.dates {
		if strftime(now(), d.format) != d.text {
			p.drop(a)
			return nil, false
		}
	}
	return a, true
}

// keep caches a prompt's ids, which must not be written to again.
func (p *prompts) keep(key askKey, ids []uint32, dates []date) *answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.put(key, ids, dates)
}

// date is a date that a template rendered.
type date struct{ format, text string }
