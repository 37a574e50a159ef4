package http1

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Memory returns to its pool with its last holder, and no sooner. Nobody holds it afterwards.
func TestMemoryReturnsWithItsLastHolder(t *testing.T) {
	b := Take(2 << 10)
	returned := 0
	b.free = func() { returned++ }
	b.Retain()
	b.Release()
	require.Zero(t, returned, "returned while another holds it")
	b.Release()
	require.Equal(t, 1, returned)
	assert.Panics(t, b.Retain, "retained after its release")
	b.n = 0
	assert.Panics(t, b.Release, "released twice")
	long := Take(1 << 30 >> 8)
	assert.True(t, long.free == nil && cap(long.B) == 1<<22, "too long to be kept: %d bytes", cap(long.B))
	long.Release()
}

// A buffer whose memory grew is not kept: its next holder gets the size of its class.
func TestGrownBuffersAreNotKept(t *testing.T) {
	b := Take(1 << 10)
	b.B = append(b.B, make([]byte, 5000)...)
	b.Reset()
	assert.Nil(t, b.B)
}

// Memory is little more than what is requested, and what returns is found again.
func TestBufSizes(t *testing.T) {
	last := -1
	for size := 1; size <= 1<<maxBufBits+1; size++ {
		class, whole := bufSize(size)
		switch {
		case size < 1<<minBufBits || size > 1<<maxBufBits:
			require.True(t, class < 0 && whole == size, "%d bytes: class %d of %d", size, class, whole)
			continue
		case whole < size || whole > size+size/bufSteps || class < max(0, last) || class > last+1 || class >= bufClasses:
			t.Fatalf("%d bytes: class %d of %d, after class %d", size, class, whole, last)
		}
		if again, same := bufSize(whole); again != class || same != whole {
			t.Fatalf("%d bytes: class %d of %d, whose own is %d of %d", size, class, whole, again, same)
		}
		last = class
	}
	assert.Equal(t, bufClasses-1, last)
}
