package simulate

import (
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/replay"
)

var update = flag.Bool("update", false, "draw docs/scheduling-*.svg from the table in docs/scheduling.md, and write the tables of docs/results.md from bench/recipes")

// The plots of docs/scheduling.md show its table of goodput: what late binding, order, slices and promotion bring.
func TestSchedulingPlots(t *testing.T) {
	text, err := os.ReadFile("../../docs/scheduling.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| fleet, load |")
	require.True(t, ok, "docs/scheduling.md has no table of goodput")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")[2:]
	for _, p := range []struct {
		file, title, without, with string
		from, to                   int // columns
	}{
		{"late", "Goodput: bound at once, and late", "at once", "late", 1, 3},
		{"order", "Goodput: by arrival, and by response ratio", "by arrival", "by response ratio", 3, 4},
		{"slices", "Goodput: prompts whole, and in slices", "whole", "in slices", 4, 5},
		{"promotion", "Goodput: without promotion, and with it", "without", "with", 5, 6},
	} {
		bars := replay.Bars{Title: p.title, Axis: replay.Axis{Name: "goodput", Unit: "%"}}
		for _, row := range rows {
			cells := strings.Split(strings.Trim(row, "| "), "|")
			require.Len(t, cells, 7, "a row of the table cells: %s", row)
			for _, bar := range []struct {
				name   string
				column int
			}{{p.without, p.from}, {p.with, p.to}} {
				value, err := strconv.ParseFloat(strings.Trim(cells[bar.column], " *"), 64)
				require.NoError(t, err)
				bars.Bars = append(bars.Bars, replay.Bar{Name: strings.TrimSpace(cells[0]) + ": " + bar.name, Value: 100 * value,
					Min: 100 * value, Max: 100 * value})
			}
		}
		drawn := strings.Replace(string(bars.SVG()), "<svg ", `<svg xmlns="http://www.w3.org/2000/svg" `, 1)
		head, rest, _ := strings.Cut(drawn, ">")
		drawn = head + "><style>" + strings.TrimSpace(replay.Style) + `
svg { --ink: #1f2430; --faint: #5d6670; --rule: #d8dce2; --ground: #fff; --bad: #b3261e; background: var(--ground); }
@media (prefers-color-scheme: dark) { svg { --ink: #e6e9ee; --faint: #a4adb8; --rule: #333a44; --ground: #14171c; } }
</style>` + rest + "\n"
		file := "../../docs/scheduling-" + p.file + ".svg"
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(drawn), 0o644))
		}
		if kept, err := os.ReadFile(file); err != nil || string(kept) != drawn {
			t.Errorf("%s is not what its table says (%v): go test ./lab/simulate -run TestSchedulingPlots -update", file, err)
		}
	}
}
