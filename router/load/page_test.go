package load

import (
	"fmt"
	"testing"
	"unsafe"
)

// A choice reads one line of the processor's cache of each page.
func TestPageIsALine(t *testing.T) {
	if got := unsafe.Sizeof(Page{}); got != 64 {
		t.Errorf("a page has %d bytes", got)
	}
	b := NewBook()
	for i := range 100 {
		p := b.Page(fmt.Sprint(i), 0)
		if uintptr(unsafe.Pointer(p))%64 != 0 {
			t.Fatalf("page %d begins within a line", i)
		}
		if b.Page(fmt.Sprint(i), 0) != p {
			t.Fatalf("page %d is not the same when it is asked for again", i)
		}
	}
}
