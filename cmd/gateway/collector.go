package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	// heapRoom is how many bytes at least the heap grows between two collections.
	heapRoom = 6 << 20
	// heapShare is how far at least it grows, in percent of what is live; Go's own default is 100.
	heapShare = 40
)

// collector paces Go's garbage collector by what was live at the last collection.
type collector struct {
	percent int              // that is set
	live    []metrics.Sample // what the percent is of
	ended   atomic.Bool
}

// paceCollector lets the heap grow by heapRoom or heapShare, whichever is more, before each collection, in place of
// doubling. It changes nothing where the environment sets GOGC or GOMEMLIMIT. The func that it returns puts back what was.
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

// watch sets the percent after the next collection, and so on.
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
		// To set it stops the program for some microseconds, so small differences do not count.
		if want := percentOf(live); want > c.percent*9/8 || want < c.percent*7/8 {
			c.percent = want
			debug.SetGCPercent(want)
		}
		c.watch()
	}, c)
}

// percentOf returns Go's GC percent for so many live bytes. Go takes 4 MiB times the percent as the least heap.
func percentOf(live uint64) int {
	return int(max(heapShare, heapRoom*100/max(live, 4<<20)))
}
