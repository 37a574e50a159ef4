package index

import (
	"syscall"
	"unsafe"
)

// Slots are read at random. With 4 kB pages nearly every read misses the TLB; 2 MB pages avoid that. Linux grants them
// if transparent_hugepage is "madvise" (the usual setting) or "always". This is advice: if refused, reads are only
// slower.
const (
	hugePage = 2 << 20

	adviseCollapse = 25 // MADV_COLLAPSE, of Linux 6.1
)

// advise requests huge pages for an array before it is filled.
func advise(words []uint64) { madvise(words, syscall.MADV_HUGEPAGE) }

// join collapses small pages of a filled array in reused memory.
func join(words []uint64) { madvise(words, adviseCollapse) }

func madvise(words []uint64, what int) {
	if len(words)*8 < 2*hugePage {
		return
	}
	first := int(-uintptr(unsafe.Pointer(unsafe.SliceData(words))) % hugePage / 8) // words before the first whole page
	whole := words[first : first+(len(words)-first)*8/hugePage*(hugePage/8)]
	_ = syscall.Madvise(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(whole))), 8*len(whole)), what)
}
