package main

import (
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestCollectorIsPaced holds much memory and gives it back.
func TestCollectorIsPaced(t *testing.T) {
	set := func() int {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	await := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); !is(); runtime.GC() {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the percent is %d", what, set())
			}
			runtime.Gosched()
		}
	}
	before := set()
	paceCollector(func(string) string { return "50" })()
	assert.Equal(t, before, set(), "the percent where the environment sets it")
	undo := paceCollector(func(string) string { return "" })
	large := make([]byte, 256<<20)
	await("256 MiB live", func() bool { return set() == heapShare })
	runtime.KeepAlive(large)
	await("little live", func() bool { return set() > heapShare })
	undo()
	assert.Equal(t, before, set(), "the percent at the end")
}
