//go:build !race

package console

import (
	"testing"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
)

// A request is recorded without an allocation, once there was one of each kind.
func TestRecordingAllocatesNothing(t *testing.T) {
	c := NewRecorder(deaf{})
	c.Watch(true)
	r := newRecord(1)
	way := func() { serveTwoLegs(c, r) }
	for range 1000 {
		way()
	}
	if n := testing.AllocsPerRun(1000, way); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

// BenchmarkRecorder is what the console adds to a request of two legs.
func BenchmarkRecorder(b *testing.B) {
	c := NewRecorder(deaf{})
	r := newRecord(1)
	for b.Loop() {
		serveTwoLegs(c, r)
	}
}

// serveTwoLegs takes a request through both legs at once.
func serveTwoLegs(c *Recorder, r *handoff.Record) {
	r.Mark, r.Attempts, r.KV, r.Outcome = nil, 0, nil, fault.None.String()
	c.Explains(0)
	c.Arrived(r)
	c.Queued(r, 1)
	r.Spent.Queued++
	r.Attempts = 1
	c.LegStarted(r, leg(prefiller))
	c.FirstToken(r, leg(prefiller))
	c.LegEnded(r, leg(prefiller))
	c.LegStarted(r, leg(decoder))
	c.FirstToken(r, leg(decoder))
	c.LegEnded(r, leg(decoder))
	c.Ended(r, nil)
}
