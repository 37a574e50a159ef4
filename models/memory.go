package models

import (
	"sync"

	"github.com/tandem-pd/tandem/internal/jinja"
	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// freeBytes are not counted, so that short requests count nothing.
	freeBytes = 64 << 10
	// maxMade bounds the bytes allocated for one request, besides its body.
	maxMade = 512 << 20
	// maxValues bounds the part for values in a template.
	maxValues = 64 << 20
	// tokenBytes is counted per byte of tokenized text: an id three times, for collecting, growing and keeping them.
	tokenBytes = 12
)

// memory accounts for what tokenizing a request allocates: values, text and ids. It implements [jinja.Memory].
type memory struct {
	req    *openai.Request
	free   int // of taken
	taken  int
	values bool // for values, which have a lower limit
}

// errTooMuch reports a request whose tokens would take too much memory.
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

// draft holds the rendered text of a request and its memory account.
type draft struct {
	memory
	text []byte
}

// drafts pools drafts. Encoders keep no part of them.
var drafts = sync.Pool{New: func() any { return &draft{text: make([]byte, 0, 16<<10)} }}

// keptDraft is the longest pooled text in bytes, keptIDs the most pooled ids.
const keptDraft, keptIDs = 4 << 20, 1 << 20

func newDraft(req *openai.Request) *draft {
	d := drafts.Get().(*draft)
	d.memory = memory{req: req, free: freeBytes}
	return d
}

// release returns the memory and recycles d.
func (d *draft) release() {
	if d.taken > 0 && d.req.Memory != nil {
		d.req.Memory.Give(d.taken)
	}
	d.memory = memory{}
	if cap(d.text) <= keptDraft {
		drafts.Put(d)
	}
}
