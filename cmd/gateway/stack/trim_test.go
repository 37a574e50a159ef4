package stack

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTrim: memory is given back once after a load, never under one, and not
// for a heap that is small.
func TestTrim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, resident atomic.Int64
		var trims []time.Duration
		start := time.Now()
		trimmer := trimmer{
			running:  func() int { return int(running.Load()) },
			resident: func() uint64 { return uint64(resident.Load()) },
			free:     func() { trims = append(trims, time.Since(start)) },
		}
		ctx, stop := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			assert.NoError(t, trimmer.Run(ctx))
		})
		at := func(minutes float64, requests, bytes int64) {
			time.Sleep(time.Until(start.Add(time.Duration(minutes*float64(time.Minute)) + time.Millisecond)))
			synctest.Wait()
			running.Store(requests)
			resident.Store(bytes)
		}
		const large = 4 * trimBytes
		at(1, 0, large)         // nothing ran yet
		at(2, 9, large)         // a load
		at(10, 0, large)        // ends: one trim 5 s later
		at(10.5, 1, large)      // another
		at(10.6, 0, large)      // ends: the next trim is a minute after the first
		at(12, 1, trimBytes-1)  // a small one
		at(13, 0, trimBytes-1)  // needs none
		at(20, 1, large)        // a pause of 3 s
		at(20.05, 0, large)     //
		at(20.1, 1, large)      // is none
		at(21, 1, large)        //
		at(22, 1, trimBytes/10) // and the end comes without a trim
		stop()
		group.Wait()
		want := []time.Duration{10*time.Minute + trimAfter, 11*time.Minute + trimAfter}
		require.Len(t, trims, len(want), "trimmed after")
		for i := range want {
			if d := trims[i] - want[i]; d < 0 || d > 2*trimLook {
				t.Errorf("trim %d came after %v, want %v", i, trims[i], want[i])
			}
		}
	})
}

// TestMemoryGoesBack: what a load leaves behind is given back to the system.
func TestMemoryGoesBack(t *testing.T) {
	const load, pieces = 256 << 20, 64
	held := make([][]byte, pieces)
	for i := range held {
		held[i] = make([]byte, load/pieces)
	}
	before := residentBytes()
	var pool sync.Pool
	for _, piece := range held {
		pool.Put(&piece)
	}
	clear(held)
	freeMemory()
	if after := residentBytes(); after+load*3/4 > before {
		t.Errorf("%d MB before, %d MB after", before>>20, after>>20)
	}
	runtime.KeepAlive(&pool)
}
