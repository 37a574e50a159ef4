package stack

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// trimmer gives memory back to the system after a load. Without requests the gateway allocates next to nothing, so
// that Go's collector, which works by allocation, leaves the garbage, the pooled buffers and the pages of the load's
// peak where they are: the next collections come after two and four minutes, and pages are kept for as much as the
// peak needed.
type trimmer struct {
	running  func() int    // requests in flight
	resident func() uint64 // bytes that the heap has of the system
	free     func()
}

const (
	// trimLook is how often the trimmer looks.
	trimLook = time.Second
	// trimAfter is how long no request may have been in flight, so that a pause
	// between two requests costs no collection.
	trimAfter = 5 * time.Second
	// trimEvery is the least time between two trims.
	trimEvery = time.Minute
	// trimBytes is what a heap may have that is not worth a trim.
	trimBytes = 64 << 20
)

func newTrimmer(running func() int) trimmer {
	return trimmer{running: running, resident: residentBytes, free: freeMemory}
}

// Run trims, once after each load, until ctx ends.
func (t trimmer) Run(ctx context.Context) error {
	tick := time.NewTicker(trimLook)
	defer tick.Stop()
	var busy, trimmed time.Time // when a request was seen last, when it was trimmed last
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			switch {
			case t.running() > 0:
				busy = now
			case !busy.After(trimmed) || now.Sub(busy) < trimAfter || now.Sub(trimmed) < trimEvery:
			case t.resident() >= trimBytes:
				t.free()
				trimmed = now
			}
		}
	}
}

// residentBytes is the memory that the heap has of the system, in use or not.
func residentBytes() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// freeMemory collects garbage twice, which empties the pools, and gives free pages back.
func freeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
