package load

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A choice reads one line of the processor's cache of each page.
func TestPageIsALine(t *testing.T) {
	assert.EqualValues(t, 64, unsafe.Sizeof(Page{}), "a page bytes")
	b := NewBook()
	for i := range 100 {
		p := b.Page(fmt.Sprint(i), 0)
		require.Zero(t, uintptr(unsafe.Pointer(p))%64, "page %d begins within a line", i)
		require.Same(t, p, b.Page(fmt.Sprint(i), 0), "page %d is not the same when it is asked for again", i)
	}
}
