package stack

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// trimmer returns memory to the system after a load. Without requests the gateway allocates almost nothing, so Go's
// collector would leave the garbage, pools and pages of the peak for minutes.
type trimmer struct {
	running  func() int    // requests in flight
	resident func() uint64 // bytes that the heap has from the system
	free     func()
}

const (
	// trimLook is how often the trimmer checks.
	trimLook = time.Second
	// trimAfter is how long no request may have been in flight, so that a pause between two requests costs no
	// collection.
	trimAfter = 5 * time.Second
	// trimEvery is the least time between two trims.
	trimEvery = time.Minute
	// trimBytes is the largest heap that is not worth a trim.
	trimBytes = 64 << 20
)

// Run trims, once after each load, until ctx ends.
func (t trimmer) Run(ctx context.Context) error {
	tick := time.NewTicker(trimLook)
	defer tick.Stop()
	var busy, trimmed time.Time // the latest request, the latest trim
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

// residentBytes returns the heap's memory from the system, used or not.
func residentBytes() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// freeMemory collects twice, which empties the pools, and returns free pages.
func freeMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
