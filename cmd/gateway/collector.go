package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	// heapRoom is the least growth of the heap between two collections, in bytes.
	heapRoom = 6 << 20
	// heapShare is the least growth of the heap in percent of the live bytes; Go's default is 100.
	heapShare = 40
)

// collector paces Go's garbage collector by the bytes live at the last collection.
type collector struct {
	percent int              // currently set
	live    []metrics.Sample // the bytes it is a percentage of
	ended   atomic.Bool
}

// paceCollector lets the heap grow by the greater of heapRoom and heapShare before each collection, instead of
// doubling. It does nothing if GOGC or GOMEMLIMIT is set. undo restores the old percentage.
func paceCollector(environ func(string) string) (undo func()) {
	if environ("GOGC") != "" || environ("GOMEMLIMIT") != "" {
		return func() {}
	}
	c := &collector{live: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}}
	c.percent = percentOf(0)
	before := debug.SetGCPercent(c.percent)
	c.watch()
	return func() {
		c.ended.Store(true)
		debug.SetGCPercent(before)
	}
}

// watch sets the percentage after each collection.
func (c *collector) watch() {
	runtime.AddCleanup(&[64]byte{}, func(c *collector) {
		if c.ended.Load() {
			return
		}
		metrics.Read(c.live)
		live := uint64(0)
		for _, s := range c.live {
			live += s.Value.Uint64()
		}
		// Setting it stops the program for microseconds, so small differences are ignored.
		if want := percentOf(live); want > c.percent*9/8 || want < c.percent*7/8 {
			c.percent = want
			debug.SetGCPercent(want)
		}
		c.watch()
	}, c)
}

// percentOf returns Go's GC percentage for live bytes. Go uses 4 MiB times the percentage as the least heap.
func percentOf(live uint64) int {
	return int(max(heapShare, heapRoom*100/max(live, 4<<20)))
}
