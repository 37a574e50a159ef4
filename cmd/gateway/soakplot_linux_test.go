package main

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// Where the soak's result is kept.
const (
	soakPlot  = "../../docs/soak.svg"
	soakBegin = "<!-- soak: written by make soak -->\n"
	soakEnd   = "<!-- end of the soak -->\n"
	soakIntro = `## A long run under faults

` + "`make soak`" + ` puts an open loop of 100 requests a second on a gateway process with two prefill and three decode workers in
processes of their own. The requests are streamed and greedy, of 120 prompts; one client in fifty leaves in mid-answer. Every registered
fault meets 0.3 % of the calls that it can befall, and about every ten seconds a worker is killed with ` + "`kill -9`" + ` and started again a
second later. Each answer is compared with the undisturbed one, token for token. The seed is printed; ` + "`-soak-seed`" + ` repeats it.

![Memory, descriptors and goroutines of the gateway over the run](soak.svg)

The plot and the table show the gateway's process alone. Its connections to clients and workers are among the descriptors.

A connection that is refused takes its worker out for 5 s, as if its process had died, and for 0.5 s where it is the last of its role.
The run injects one into 0.3 % of the calls, so at times no worker of a role is left although most are alive: that is
` + "`no_worker`" + `, which a run without this fault does not have. A ` + "`suspected_poison`" + ` has met two failures that look like
deaths. The goroutines after the run include some that closed the clients' connections and wait 2 s for others.

`
)

// writeSoak draws the plot and writes the figures between the marks in docs/faults.md.
func writeSoak(t testing.TB, figures string, samples []sample) {
	t.Helper()
	text, err := os.ReadFile(reportTo)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, begun := strings.Cut(string(text), soakBegin)
	_, tail, ended := strings.Cut(rest, soakEnd)
	if !begun || !ended {
		t.Fatalf("%s has no place for the soak's figures", reportTo)
	}
	if err := os.WriteFile(reportTo, []byte(head+soakBegin+soakIntro+figures+soakEnd+tail), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(soakPlot, []byte(plotSoak(samples)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Measures of the plot in its own units.
const (
	plotWide, plotHigh = 760, 120 // of one panel's axes
	plotLeft, plotGap  = 64, 44
	plotPoints         = 380 // most in a line
)

// plotSoak draws memory, descriptors and goroutines over minutes, one panel under the other, each from 0. Where there
// are more samples than places, the greatest of those that share one counts.
func plotSoak(samples []sample) string {
	panels := []struct {
		title string
		lines []func(sample) float64
	}{
		{"MiB: resident, heap in use", []func(sample) float64{func(s sample) float64 { return s.rss }, func(s sample) float64 { return s.heap }}},
		{"open descriptors", []func(sample) float64{func(s sample) float64 { return s.descriptors }}},
		{"goroutines", []func(sample) float64{func(s sample) float64 { return s.goroutines }}},
	}
	full := len(panels)*(plotHigh+plotGap) + 26
	minutes := samples[len(samples)-1].at.Minutes()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui,sans-serif" font-size="12">
<title>A gateway under load and faults: memory, descriptors, goroutines</title>
<style>
.page{fill:#fff}.axis{stroke:#d1d5db;fill:none}.note{fill:#4b5563}.line0{stroke:#1d4ed8}.line1{stroke:#b45309}.line0,.line1{fill:none;stroke-width:1.3}
@media(prefers-color-scheme:dark){.page{fill:#0d1117}.axis{stroke:#30363d}.note{fill:#9ca3af}.line0{stroke:#79a8ff}.line1{stroke:#f5b452}}
</style>
<rect class="page" width="100%%" height="100%%"/>
`, plotLeft+plotWide+24, full)
	for i, p := range panels {
		top, highest := float64(i*(plotHigh+plotGap)+28), 0.
		for _, s := range samples {
			for _, value := range p.lines {
				highest = max(highest, value(s))
			}
		}
		step := roundStep(highest / 3)
		scale := plotHigh / (math.Ceil(highest/step) * step)
		fmt.Fprintf(&b, "<text class=\"note\" x=\"%d\" y=\"%.0f\" font-weight=\"600\">%s</text>\n", plotLeft, top-8, p.title)
		for v := 0.; v*scale <= plotHigh+.5; v += step {
			y := top + plotHigh - v*scale
			fmt.Fprintf(&b, "<path class=\"axis\" d=\"M%d %.1fh%d\"/><text class=\"note\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", plotLeft, y, plotWide, plotLeft-8, y+4, v)
		}
		for n, value := range p.lines {
			fmt.Fprintf(&b, "<path class=\"line%d\" d=\"", n)
			for j, places := 0, min(plotPoints, len(samples)); j < places; j++ {
				share := samples[j*len(samples)/places : (j+1)*len(samples)/places]
				most := 0.
				for _, s := range share {
					most = max(most, value(s))
				}
				fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(j, 1)], plotLeft+share[0].at.Minutes()/minutes*plotWide, top+plotHigh-most*scale)
			}
			b.WriteString("\"/>\n")
		}
		for v, step := 0., roundStep(minutes/6); v <= minutes+step/100; v += step {
			unit := ""
			if v == 0 {
				unit = " min"
			}
			fmt.Fprintf(&b, "<text class=\"note\" x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%g%s</text>\n", plotLeft+v/minutes*plotWide, top+plotHigh+16, math.Round(v*100)/100, unit)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// roundStep is the least of 1, 2 and 5 times a power of ten that is not below v.
func roundStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(v, 1e-3))))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= v {
			return m * power
		}
	}
	return 10 * power
}
