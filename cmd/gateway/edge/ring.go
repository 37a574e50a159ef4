package edge

import (
	"io"
	"sync"
	"time"
)

// minRingBytes is what a ring starts with; it grows, up to its limit, only behind a client slower than its engine.
const minRingBytes = 4 << 10

// ringBuffer is what a ring starts with.
type ringBuffer [minRingBytes]byte

var ringBuffers = sync.Pool{New: func() any { return new(ringBuffer) }}

// ping is the comment that shows a silent event stream to be alive.
const ping = ": ping\n\n"

// ring is a bounded queue of bytes between the flow, which writes an answer, and fasthttp, which pulls it. One
// goroutine writes, one reads. Both wait: the writer while the ring is full, so that a slow client slows its engine
// and not the memory, the reader while it is empty. It ends in one of two ways: end lets the reader have what is
// left, abort takes it away from both.
type ring struct {
	mu       sync.Mutex
	readable sync.Cond // more bytes, an end, a ping
	writable sync.Cond // room, an end
	buf      []byte
	head     int // index of the first byte
	size     int // bytes queued
	limit    int // the most buf grows to
	ended    bool
	err      error // why it was aborted

	waiting bool      // the reader waits
	since   time.Time // when it began to
	pinging bool      // a ping is due
	tail    [4]byte   // the last bytes written, to know where an event ends
}

func newRing(limit int) *ring {
	r := &ring{buf: ringBuffers.Get().(*ringBuffer)[:], limit: max(limit, minRingBytes)}
	r.readable.L, r.writable.L = &r.mu, &r.mu
	return r
}

// Write queues a copy of p, waiting for room. It fails once the ring was aborted or ended.
func (r *ring) Write(p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.err != nil {
			return r.err
		}
		if r.ended {
			return io.ErrClosedPipe
		}
		p = p[r.put(p):]
		if len(p) == 0 {
			return nil
		}
		r.writable.Wait()
	}
}

// Read takes what is queued, at most len(p) bytes, waiting for the first. more says that the next Read will not wait:
// bytes are left, or the end is known.
func (r *ring) Read(p []byte) (n int, more bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.err != nil:
			return 0, false, r.err
		case r.size > 0:
			n = r.take(p)
			return n, r.size > 0 || r.ended, nil
		case r.ended:
			return 0, false, io.EOF
		case r.pinging:
			r.pinging = false
			return copy(p, ping), false, nil
		}
		r.waiting, r.since = true, time.Now()
		r.readable.Wait()
		r.waiting = false
	}
}

// drainTo moves what is queued to w, which is memory, without waiting.
func (r *ring) drainTo(w io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.size > 0 {
		p := r.buf[r.head:min(r.head+r.size, len(r.buf))]
		_, _ = w.Write(p)
		r.size -= len(p)
		r.head = (r.head + len(p)) % len(r.buf)
	}
	r.writable.Signal()
}

// settle waits until the whole answer is queued or the ring is full, and reports which. It fails when the ring was
// aborted.
func (r *ring) settle() (whole bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.err == nil && !r.ended && r.size < r.limit {
		r.readable.Wait()
	}
	return r.ended, r.err
}

// end says that no more comes, but for last, which is queued whatever the limit. A ring that ended or was aborted
// before stays as it is.
func (r *ring) end(last []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.ended {
		return
	}
	if free := len(r.buf) - r.size; free < len(last) {
		r.resize(r.size + len(last))
	}
	r.put(last)
	r.ended = true
	r.readable.Signal()
	r.writable.Signal()
}

// abort fails both ends with err, at once. The first reason stays.
func (r *ring) abort(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	r.err = err
	r.readable.Signal()
	r.writable.Signal()
}

// Close is the reader's: it aborts the ring unless that was done, and gives its buffer back.
func (r *ring) Close() {
	r.abort(io.ErrClosedPipe)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.buf) == minRingBytes {
		ringBuffers.Put((*ringBuffer)(r.buf))
	}
	r.buf, r.head, r.size = nil, 0, 0
}

// ping makes a ping due unless something was written.
func (r *ring) ping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tail == [4]byte{} {
		r.pinging = true
		r.readable.Signal()
	}
}

// beat makes a ping due when the reader has waited for d and the stream stands between two events. It returns when to
// ask again, 0 for never.
func (r *ring) beat(d time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil || r.ended {
		return 0
	}
	if !r.waiting || r.size > 0 {
		return d
	}
	if idle := time.Since(r.since); idle < d {
		return d - idle
	}
	if r.betweenEvents() {
		r.pinging = true
		r.readable.Signal()
	}
	return d
}

// put queues as much of p as there is room for, growing the buffer first.
func (r *ring) put(p []byte) int {
	if need := r.size + len(p); need > len(r.buf) && len(r.buf) < r.limit {
		r.resize(min(max(need, 2*len(r.buf)), r.limit))
	}
	n := min(len(p), len(r.buf)-r.size)
	if n == 0 {
		return 0
	}
	at := (r.head + r.size) % len(r.buf)
	k := copy(r.buf[at:], p[:n])
	copy(r.buf, p[k:n])
	r.size += n
	r.pinging = false // these bytes show life, and may be half an event
	k = copy(r.tail[:], r.tail[min(n, len(r.tail)):])
	copy(r.tail[k:], p[max(0, n-len(r.tail)):n])
	r.readable.Signal()
	return n
}

// take moves up to len(p) bytes out.
func (r *ring) take(p []byte) int {
	n := min(len(p), r.size)
	k := copy(p[:n], r.buf[r.head:])
	copy(p[k:n], r.buf)
	r.size -= n
	r.head = (r.head + n) % len(r.buf)
	if r.size == 0 {
		r.head = 0
	}
	r.writable.Signal()
	return n
}

// resize moves the queue into a buffer of n bytes.
func (r *ring) resize(n int) {
	b := make([]byte, n)
	k := copy(b[:r.size], r.buf[r.head:])
	copy(b[k:r.size], r.buf)
	r.buf, r.head = b, 0
}

// betweenEvents reports whether nothing was written yet or the last event is complete, that is, ends in a blank line.
func (r *ring) betweenEvents() bool {
	t := string(r.tail[:])
	return t == "\x00\x00\x00\x00" || t[2:] == "\n\n" || t[2:] == "\r\r" || t == "\r\n\r\n"
}
