package handoff

// held is everything a request holds: bookings, and KV that an engine keeps
// for it. It is released last-in first-out, each thing exactly once, and can
// unwind to a mark, so that a failed prefill gives up what came after decode's
// room and keeps the room. It belongs to one request's goroutine.
type held struct{ stack []func() }

// mark is a height of the stack.
type mark int

// hold takes responsibility for one more thing and returns the mark below it.
func (h *held) hold(release func()) mark {
	h.stack = append(h.stack, release)
	return mark(len(h.stack) - 1)
}

// unwind releases what was held above m, the latest first.
func (h *held) unwind(m mark) {
	for len(h.stack) > int(m) {
		top := len(h.stack) - 1
		release := h.stack[top]
		h.stack[top] = nil
		h.stack = h.stack[:top]
		release()
	}
}

// release lets go of everything.
func (h *held) release() { h.unwind(0) }

// swap releases the one thing held at m and keeps what lies above it; the
// marks above m stay true.
func (h *held) swap(m mark) {
	release := h.stack[m]
	h.stack[m] = func() {}
	release()
}
