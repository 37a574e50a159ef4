package index

import (
	"syscall"
	"unsafe"
)

// Slots are read at random all over an array. With pages of 4 kB nearly each such read first waits for the processor
// to find the page, which takes as long as the read; with pages of 2 MB it knows them all. Linux gives those where it
// was asked to (transparent_hugepage "madvise", the usual setting, or "always"). All this is advice: what is refused
// is slower, and nothing else.
const (
	hugePage = 2 << 20

	adviseCollapse = 25 // MADV_COLLAPSE, of Linux 6.1
)

// advise asks for huge pages for an array that is about to be filled.
func advise(words []uint64) { tell(words, syscall.MADV_HUGEPAGE) }

// join has the pages joined of an array that lies in memory used before, in small pages, now that it is filled.
func join(words []uint64) { tell(words, adviseCollapse) }

func tell(words []uint64, what int) {
	if len(words)*8 < 2*hugePage {
		return
	}
	first := int(-uintptr(unsafe.Pointer(unsafe.SliceData(words))) % hugePage / 8) // words before the first whole page
	whole := words[first : first+(len(words)-first)*8/hugePage*(hugePage/8)]
	_ = syscall.Madvise(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(whole))), 8*len(whole)), what)
}
