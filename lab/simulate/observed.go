package simulate

import (
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// Observed is the report of a real run: the same figures from the same
// definitions as a simulated one's, to compare the two.
func Observed(name string, samples []replay.Sample, slo SLO) *Report {
	out := &Outcome{Samples: samples, StageOf: make([]int32, len(samples))}
	var end time.Duration
	for i := range samples {
		end = max(end, time.Duration(samples[i].Scheduled+samples[i].E2E))
	}
	out.Stages = []Span{{0, end}}
	m := &Measured{Metrics: measured(&slo, out, -1, -1), Curves: shares(out)}
	r := &Report{Name: name, SLO: slo, Arms: []ArmReport{{Name: name, Arm: name, Fleet: "as observed", slo: slo, runs: []*Measured{m}}}}
	r.finish("")
	return r
}
