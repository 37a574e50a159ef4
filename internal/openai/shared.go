package openai

import "sync"

// Edits, scans and trees use the memory of those before them.
var (
	edits = sync.Pool{New: func() any { return &Edit{changes: make([]change, 0, 24), own: make([]member, 0, 16)} }}
	scans = sync.Pool{New: func() any { return new(scan) }}

	branches = sync.Pool{New: func() any { return new([]branch) }}
)

// The most members, changes, messages and values whose memory is kept.
const (
	keptEdits = 64
	keptScans = 256
	keptNodes = 1 << 14
)

func takeEdit() *Edit { return edits.Get().(*Edit) }

// Release recycles the edit's memory. The edit must not be used afterwards; results stay valid. Without Release the
// garbage collector frees it.
func (e *Edit) Release() {
	if cap(e.own) > keptEdits || cap(e.changes) > keptEdits {
		return
	}
	clear(e.own)
	clear(e.changes)
	*e = Edit{own: e.own[:0], changes: e.changes[:0]}
	edits.Put(e)
}

// release gives the scan's memory to the next one.
func (s *scan) release() {
	if cap(s.came) > keptScans || cap(s.spans) > keptScans {
		return
	}
	clear(s.came)
	*s = scan{came: s.came[:0], spans: s.spans[:0]}
	scans.Put(s)
}
