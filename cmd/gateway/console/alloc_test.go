//go:build !race

package console

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A request is recorded without an allocation, once there was one of each kind.
func TestRecordingAllocatesNothing(t *testing.T) {
	c := NewRecorder(deaf{})
	c.Watch(true)
	r := newRecord(1)
	way := func() { serve(c, r, 0, 0, 0, 0) }
	for range 1000 {
		way()
	}
	assert.EqualValues(t, 0, testing.AllocsPerRun(1000, way), "allocations a request")
}

// BenchmarkRecorder is what the console adds to a request of two legs.
func BenchmarkRecorder(b *testing.B) {
	c := NewRecorder(deaf{})
	r := newRecord(1)
	for b.Loop() {
		serve(c, r, 0, 0, 0, 0)
	}
}
