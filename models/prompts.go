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

// Prompt is a prompt's token ids. Its zero value is a prompt whose tokens are not known.
type Prompt struct {
	// IDs may be shared with other requests: they must not be written to.
	IDs []uint32

	by    *Language // that made them, nil where they came from elsewhere
	kind  uint64    // of the request
	dated bool      // they depend on the time
	kept  *answer   // where the whole prompt is remembered
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
		p.in.mu.Unlock() // others need not wait; one that makes the same meanwhile does no harm
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
	// maxChains is how many chains of one prompt are kept: those of prefill's and of decode's blocks, for two salts.
	maxChains = 4
	// minWhole is the shortest body whose prompt is remembered whole: less costs about as much to tokenize as to find.
	minWhole = 4 << 10
	// wholeShare is which part of a language's memory is for whole prompts; the rest is for their parts.
	wholeShare = 4
)

// prompts are the prompts of long bodies that were tokenized last, by what they are made of: one that comes again costs
// a hash of its bytes. It is safe for concurrent use.
type prompts struct {
	seed uint64

	mu sync.Mutex // guards what follows, and the answers in it
	remembered
}

// newPrompts returns prompts that take up to limit bytes.
func newPrompts(limit int64) *prompts {
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	return &prompts{seed: binary.LittleEndian.Uint64(seed[:]), remembered: remembered{limit: limit}}
}

// takes reports whether a request's prompt is looked for.
func (p *prompts) takes(req *openai.Request) bool { return p.limit > 0 && len(req.Raw) >= minWhole }

// find returns a prompt that is remembered. One whose template read the clock counts only while it would render the
// same.
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

// keep remembers a prompt's ids, which must not be written to again.
func (p *prompts) keep(key askKey, ids []uint32, dates []date) *answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.put(key, ids, dates)
}

// date is what a template made of the clock.
type date struct{ format, text string }
