package http1

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// Refs counts the holders of pooled memory, which embeds it. [Pool.Take] makes the caller its one holder. Code
// that may use the memory for longer than its caller does calls Retain before and Release after. A holder that never
// releases leaves the memory to the garbage collector.
type Refs struct {
	n    int32
	free func() // resets the memory and returns it to its pool; nil for memory of none
}

func (r *Refs) refs() *Refs { return r }

// Retain adds a holder. The caller is one already.
func (r *Refs) Retain() {
	if atomic.AddInt32(&r.n, 1) < 2 {
		panic("http1: pooled memory is retained after its release")
	}
}

// Release removes a holder, which must not use the memory any longer. The last one returns it to its pool.
func (r *Refs) Release() {
	switch n := atomic.AddInt32(&r.n, -1); {
	case n < 0:
		panic("http1: pooled memory is released twice")
	case n == 0 && r.free != nil:
		r.free()
	}
}

// Pooled is memory of a [Pool]. Reset clears it for the next holder, and keeps its Refs.
type Pooled[T any] interface {
	*T
	Reset()
	refs() *Refs
}

// Pool keeps released memory for the next Take. The zero value is ready.
type Pool[T any, P Pooled[T]] struct{ spare sync.Pool }

// Take returns memory whose one holder is the caller.
func (p *Pool[T, P]) Take() P {
	m, ok := p.spare.Get().(P)
	if !ok {
		m = new(T)
		m.refs().free = func() {
			m.Reset()
			p.spare.Put(m)
		}
	}
	m.refs().n = 1
	return m
}

// Buf is pooled bytes. Under the race detector the last Release overwrites them: a reader that holds no reference shows
// in its output, or as a race.
type Buf struct {
	Refs
	B    []byte
	size int // of B's memory when it was taken
}

// Retain is that of [Refs]. A nil buffer is memory of no pool.
func (b *Buf) Retain() {
	if b != nil {
		b.Refs.Retain()
	}
}

// Release is that of [Refs].
func (b *Buf) Release() {
	if b != nil {
		b.Refs.Release()
	}
}

// Take returns an empty buffer with memory for at least size bytes.
func Take(size int) *Buf {
	class, whole := bufSize(size)
	if class < 0 {
		return &Buf{Refs: Refs{n: 1}, B: make([]byte, 0, size), size: size}
	}
	b := bufs[class].Take()
	if b.B == nil {
		b.B, b.size = make([]byte, 0, whole), whole
	}
	return b
}

// Reset implements [Pooled].
func (b *Buf) Reset() {
	poison(b.B[:cap(b.B)])
	if b.B = b.B[:0]; cap(b.B) != b.size {
		b.B = nil // its holder put other memory in place
	}
}

// bufs holds spare buffers, in sizes an eighth of a power of two apart. Shorter memory is cheap to allocate, longer too
// large to keep idle.
var bufs [bufClasses]Pool[Buf, *Buf]

const (
	minBufBits, maxBufBits = 10, 21 // 1 KiB, 2 MiB

	bufSteps   = 8
	bufClasses = (maxBufBits-minBufBits)*bufSteps + 1
)

// BufSize returns how much memory [Take] uses for size bytes.
func BufSize(size int) int {
	_, whole := bufSize(size)
	return whole
}

// bufSize returns the class of buffers for size bytes and their size, or -1 and size.
func bufSize(size int) (class, whole int) {
	if size < 1<<minBufBits || size > 1<<maxBufBits {
		return -1, size
	}
	octave := bits.Len(uint(size)) - 1
	step := 1 << octave / bufSteps
	n := (size - 1<<octave + step - 1) / step // 8 is the first of the next octave
	return (octave-minBufBits)*bufSteps + n, 1<<octave + n*step
}
