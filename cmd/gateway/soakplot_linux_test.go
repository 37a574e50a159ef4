package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/replay"
)

// Where the soak's result is kept.
const (
	soakPlot  = "../../docs/soak.svg"
	soakBegin = "<!-- figures of the soak: written by make soak -->\n"
	soakEnd   = "<!-- end of the soak -->\n"
)

// writeSoak draws the plot and writes the figures between the marks in docs/faults.md.
func writeSoak(t testing.TB, figures string, samples []sample) {
	t.Helper()
	text, err := os.ReadFile(reportTo)
	require.NoError(t, err)
	head, rest, begun := bytes.Cut(text, []byte(soakBegin))
	_, tail, ended := bytes.Cut(rest, []byte(soakEnd))
	require.True(t, begun && ended, "%s has no place for the soak's figures", reportTo)
	require.NoError(t, os.WriteFile(reportTo, slices.Concat(head, []byte(soakBegin+figures+soakEnd), tail), 0o600))
	require.NoError(t, os.WriteFile(soakPlot, []byte(plotSoak(samples)), 0o600))
}

// soakStyle is what a page defines for its plots.
const soakStyle = `svg { --ink: #1f2937; --faint: #4b5563; --rule: #d1d5db; --ground: #fff; } .page { fill: var(--ground); }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #9ca3af; --rule: #30363d; --ground: #0d1117; } }` + replay.Style

// plotSoak draws what the gateway held over minutes, in two columns. Where there are more samples than places, the greatest of those that
// share one counts.
func plotSoak(samples []sample) string {
	const wide, high, places = 400, 260, 380
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d"><title>A gateway under load and faults</title><style>%s</style><rect class="page" width="100%%" height="100%%"/>`,
		2*wide, 2*high, soakStyle)
	for i, name := range held[:inFlight] {
		var s replay.Series
		for n := min(places, len(samples)); len(s.X) < n; {
			share := samples[len(s.X)*len(samples)/n : (len(s.X)+1)*len(samples)/n]
			most := 0.
			for _, at := range share {
				most = max(most, at.held[i])
			}
			s.X, s.Y = append(s.X, share[0].at.Minutes()), append(s.Y, most)
		}
		p := replay.Plot{Title: name, X: replay.Axis{Name: "time", Unit: "min"}, Y: replay.Axis{Name: name}, Series: []replay.Series{s}}
		at := fmt.Sprintf(`<svg x="%d" y="%d" width="%d" height="%d" `, i%2*wide, i/2*high, wide, high)
		b.WriteString(strings.Replace(string(p.SVG()), "<svg ", at, 1))
	}
	b.WriteString("</svg>\n")
	return b.String()
}
