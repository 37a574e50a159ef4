//go:build !race

package main

import (
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A short request of two legs, allocates about 30 times. One that lost its pooled
// memory's context allocated 45 times and took 15 % more CPU (BenchmarkRequest).
func TestRequestAllocates(t *testing.T) {
	address, _ := serveWired(t)
	c, number := newCaller(t, address), int64(0)
	call := func() {
		number++
		require.NoError(t, c.call(number))
	}
	least := math.Inf(1)
	for range 6 { // the first fills connections, pools and caches; what runs beside the requests allocates, too
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 200 {
			call()
		}
		runtime.ReadMemStats(&after)
		least = min(least, float64(after.Mallocs-before.Mallocs)/200)
	}
	assert.LessOrEqual(t, least, 36.0, "allocations a request")
}
