package console

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// fleetOf is a model with so many workers of each role.
func fleetOf(prefill, decode, both int) *model {
	m := &model{Name: "m"}
	for _, p := range []struct {
		role pools.Role
		n    int
	}{{pools.Prefill, prefill}, {pools.Decode, decode}, {pools.Both, both}} {
		own := pool{Role: p.role}
		for i := range p.n {
			own.Workers = append(own.Workers, worker{WorkerReport: observe.WorkerReport{ID: fmt.Sprint(p.role, i), State: "up",
				Circuit: fault.Closed}, Role: p.role})
		}
		m.Pools = append(m.Pools, own)
	}
	return m
}

// Whatever a fleet has, its picture shows it within its frame, and no node lies on another.
func TestDiagrams(t *testing.T) {
	for _, n := range [][3]int{{0, 0, 0}, {0, 0, 3}, {0, 2, 0}, {1, 1, 0}, {3, 1, 0}, {1, 12, 0}, {2, 2, 2}, {30, 40, 0}} {
		for _, d := range fleetOf(n[0], n[1], n[2]).Diagrams() {
			nodes := []node{d.Client, d.Queue}
			for _, c := range d.Columns {
				for _, w := range c.Nodes {
					nodes = append(nodes, w.node)
				}
				assert.True(t, c.More <= 0 || c.MoreY+10 <= d.Height,
					"%v: the note on further workers lies below the picture", n)
			}
			for i, a := range nodes {
				assert.True(t, a.X >= 0 && a.Y >= 0 && a.Right() <= d.Width && a.Bottom() <= d.Height,
					"%v, narrow %v: %+v leaves %d × %d", n, d.Narrow, a, d.Width, d.Height)
				for _, b := range nodes[:i] {
					assert.True(t, a.X >= b.Right() || b.X >= a.Right() || a.Y >= b.Bottom() || b.Y >= a.Bottom(),
						"%v, narrow %v: %+v lies on %+v", n, d.Narrow, a, b)
				}
			}
		}
	}
}

// A state shows by its word and its sign, and a worker that is full is not one that has failed.
func TestStates(t *testing.T) {
	type report = observe.WorkerReport
	for _, tt := range []struct {
		report
		gone       bool
		tone, word string
	}{
		{report{State: "up"}, false, "good", "up"},
		{report{State: "up", TotalBlocks: 100, ActiveBlocks: 95}, false, "busy", "up"},
		{report{State: "up", MaxNumSeqs: 4, Ranks: 2, Requests: 8}, false, "busy", "up"},
		{report{State: "up", Circuit: fault.Open}, false, "bad", "circuit open"},
		{report{State: "up", Circuit: fault.HalfOpen}, false, "warn", "circuit half-open"},
		{report{State: "down"}, false, "bad", "down"},
		{report{State: "draining"}, false, "warn", "draining"},
		{report{State: "probation"}, false, "warn", "probation"},
		{report{State: "up"}, true, "bad", "gone"},
	} {
		tt.Circuit = cmp.Or(tt.Circuit, fault.Closed)
		w := worker{WorkerReport: tt.report, Gone: tt.gone}
		assert.True(t, w.Tone() == tt.tone && w.Word() == tt.word && w.Mark() != "",
			"%+v is %s, %q, %s", w.WorkerReport, w.Tone(), w.Word(), w.Mark())
	}
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		short(.00012): "0.1 ms", short(.0234): "23.4 ms", short(.234): "234 ms", short(2.345): "2.35 s", short(23.45): "23.4 s",
		short(234): "234 s", short(0): "0 ms",
		count(9999): "9999", count(12_345): "12 k", count(1_234_567): "1.2 M", count(12_345_678): "12 M", percent(.345): "34 %",
		percent(ratio(0, 0)): "–",
		perSecond(1.25):      "1.2/s", perSecond(12_345): "12 k/s", plural(1, "a", "b"): "1 a", plural(2, "a", "b"): "2 b",
	} {
		assert.Equal(t, want, got)
	}
}
