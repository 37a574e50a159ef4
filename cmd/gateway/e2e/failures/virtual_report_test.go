package failures

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/lab/replay"
)

// docs/faults.md has the report of TestFaultsInVirtualTime between two lines.
const (
	virtualBegin = "<!-- virtual: written by make faults -->\n"
	virtualEnd   = "<!-- end of virtual -->\n"
)

// reportTroubles logs what came of each fault, and with -update writes it into docs/faults.md.
func reportTroubles(t *testing.T, all []trouble, alone, paired []toll, took time.Duration) {
	t.Helper()
	var out strings.Builder
	var sum toll
	fmt.Fprintf(&out, "| fault | alone: requests | disturbed | exact | typed error | silence p50 | p99 | in pairs: requests | disturbed | exact | typed error | silence p50 | p99 |\n")
	out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range all {
		fmt.Fprintf(&out, "| %s |%s%s\n", all[i].name, cells(alone[i]), cells(paired[i]))
		sum.add(alone[i])
		sum.count(paired[i], 2) // each pair is in two rows
		if alone[i].requests > 0 && alone[i].disturbed == 0 && len(all[i].rules) > 0 {
			t.Errorf("%s: it hit nothing", all[i].name)
		}
	}
	if 3*sum.failed > sum.disturbed {
		t.Errorf("of %d disturbed requests %d failed", sum.disturbed, sum.failed)
	}
	fmt.Fprintf(&out, "\n%d requests in %s, seed %d: %d of them disturbed, %d exact, %d ended with a typed error, %d clients left. "+
		"0 tokens lost, doubled or changed; 0 bookings, 0 KV left at engines, 0 goroutines and timers left.\n",
		sum.requests, took.Round(time.Second), *faultsSeed, sum.disturbed, sum.whole, sum.failed, sum.left)
	t.Log("\n" + out.String())
	if !*fleet.Update || t.Failed() {
		return
	}
	old, err := os.ReadFile(resumeFile)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(old), virtualBegin)
	_, tail, found := strings.Cut(rest, virtualEnd)
	if !found {
		t.Fatalf("%s has no place for the report", resumeFile)
	}
	if err := os.WriteFile(resumeFile, []byte(head+virtualBegin+out.String()+virtualEnd+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cells are a toll's, each with its bar behind it.
func cells(o toll) string {
	slices.Sort(o.silences)
	quantile := func(q float64) string {
		if len(o.silences) == 0 {
			return "–"
		}
		return replay.Quantile(o.silences, q).Round(time.Millisecond).String()
	}
	return fmt.Sprintf(" %d | %d | %d | %d | %s | %s |", o.requests, o.disturbed, o.whole, o.failed, quantile(.5), quantile(.99))
}
