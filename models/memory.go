package models

import (
	"sync"

	"github.com/tandem-pd/tandem/internal/jinja"
	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// freeBytes is what is made of a request without being counted: of a short one all.
	freeBytes = 64 << 10
	// maxMade is how much may be made of one request, in bytes, beyond its body.
	maxMade = 512 << 20
	// maxValues is how much of that its values in a template may be.
	maxValues = 64 << 20
	// tokenBytes is what is counted of a byte of text that is tokenized: its token's id three times, as the ids are
	// collected, as they move when they grow, and as they are kept.
	tokenBytes = 12
)

// memory counts what is made of a request on the way to its tokens: values, text and ids. It implements [jinja.Memory].
type memory struct {
	req    *openai.Request
	free   int // of what is taken
	taken  int
	values bool // values are made, of which there may be fewer
}

// errTooMuch is why a request has no tokens of which too much would have to be made.
var errTooMuch = unrendered("%v", jinja.ErrMemory)

// Take implements [jinja.Memory]. A nil memory counts nothing.
func (m *memory) Take(n int) bool {
	if m == nil {
		return true
	}
	if m.free >= n {
		m.free -= n
		return true
	}
	most, more := maxMade, max(n, freeBytes)
	if m.values {
		most = maxValues
	}
	if m.taken+more > most || m.req.Memory != nil && !m.req.Memory.Take(more) {
		return false
	}
	m.taken += more
	m.free += more - n
	return true
}

// draft is what a request's tokens are made in: the text that a template has rendered, and the memory of all.
type draft struct {
	memory
	text []byte
}

// drafts are used again. An encoder keeps no part of them.
var drafts = sync.Pool{New: func() any { return &draft{text: make([]byte, 0, 16<<10)} }}

// keptDraft is the longest text whose memory is used again, and keptIDs the most ids.
const keptDraft, keptIDs = 4 << 20, 1 << 20

func newDraft(req *openai.Request) *draft {
	d := drafts.Get().(*draft)
	d.memory = memory{req: req, free: freeBytes}
	return d
}

// release gives back what was taken.
func (d *draft) release() {
	if d.taken > 0 && d.req.Memory != nil {
		d.req.Memory.Give(d.taken)
	}
	d.memory = memory{}
	if cap(d.text) <= keptDraft {
		drafts.Put(d)
	}
}
