package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Whatever the values, every point and every limit is inside the area, and the axes are named.
func TestNothingIsOutside(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for n := range 100 {
		p := Plot{
			Title: "t", X: Axis{Name: "x", Unit: "s", Log: rng.IntN(2) == 0},
			Y:    Axis{Name: "y", Unit: []string{"%", "ms"}[rng.IntN(2)], Log: rng.IntN(2) == 0},
			Dots: rng.IntN(3) == 0, Marks: rng.IntN(2) == 0, Steps: rng.IntN(2) == 0,
		}
		size := math.Pow(10, float64(rng.IntN(14)-6))
		for s := range rng.IntN(11) {
			line := Series{Name: fmt.Sprint("series ", s)}
			for range rng.IntN(30) {
				value := func() float64 {
					switch rng.IntN(12) {
					case 0:
						return 0
					case 1:
						return []float64{math.NaN(), math.Inf(1), -size}[rng.IntN(3)]
					}
					return rng.Float64() * size
				}
				line.X, line.Y = append(line.X, value()), append(line.Y, value())
			}
			p.Series = append(p.Series, line)
		}
		for range rng.IntN(3) {
			p.Limits = append(p.Limits, Limit{Name: "limit", At: size * (0.01 + rng.Float64()*10), OnX: rng.IntN(2) == 0})
		}
		figures := checkPlot(t, string(p.SVG()))
		if len(figures) != 1 || len(figures[0].Series) > MostSeries || len(figures[0].Limits) != len(p.Limits) ||
			!strings.HasPrefix(figures[0].Y, "y, ") {
			t.Fatalf("run %d: %+v", n, figures)
		}
		assert.Equal(t, p.Empty(), (figures[0].Points == 0), "run %d: %d points of a plot that is empty", n, figures[0].Points)
	}
}

// Eight series at most are drawn, each with a colour and a dash of its own in the legend, and the rest is owned up to.
func TestSeriesAreDistinct(t *testing.T) {
	p := Plot{X: Axis{Name: "x"}, Y: Axis{Name: "y"}, Marks: true}
	for s := range 11 {
		p.Series = append(p.Series, Series{Name: fmt.Sprintf("<arm %d>", s), X: []float64{1, 2}, Y: []float64{float64(s), 3}})
	}
	legend := string(p.Legend())
	for _, pattern := range []string{`<li class="(s[0-9])"`, `stroke-dasharray="([^"]*)"`, `<text class="mark"[^>]*>([^<]*)<`} {
		var seen []string
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(legend, -1) {
			seen = append(seen, m[1])
		}
		slices.Sort(seen)
		assert.True(t, len(seen) == MostSeries && len(slices.Compact(seen)) == MostSeries, "%s: %q", pattern, seen)
	}
	if f := checkPlot(t, string(p.SVG())); len(f[0].Series) != MostSeries || f[0].Series[0] != "<arm 0>" {
		t.Errorf("%+v", f)
	}
	if !strings.Contains(legend, "&lt;arm 7&gt;") || strings.Contains(legend, "arm 8") ||
		p.Note() != "8 of 11 lines are drawn; the tables have all." {
		t.Errorf("%s\n%s", legend, p.Note())
	}
	p.Series = p.Series[:1]
	assert.True(t, p.Legend() == "" && p.Note() == "", "one series needs a legend")
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 5: "5", 0.5: "0.5", 1.25: "1.25", 0.1 + 0.2: "0.3", 999: "999", 1000: "1,000", 12345.6: "12,346", 1234567: "1,234,567",
		-1234: "-1,234", -12: "-12",
		100: "100", 0.001: "0.001", 0.0001: "0.0001", 99.96: "99.96", 1e12: "1e+12", 1.0 / 3: "0.3333",
	} {
		assert.Equal(t, want, Number(v), v)
	}
}

func TestBars(t *testing.T) {
	p := Bars{
		Title: "Goodput", Axis: Axis{Name: "goodput", Unit: "%"}, Limits: []Limit{{Name: "90 %", At: 90}},
		Bars: []Bar{{"kv", 93.27, 91, 95}, {"none", 0, 0, 0}, {"all", 100, 100, 100}},
	}
	f := checkPlot(t, string(p.SVG()))
	assert.True(t, len(f) == 1 && f[0].X == "goodput, %" && len(f[0].Series) == 3 && len(f[0].Limits) == 1, "%+v", f)
	if svg := string(p.SVG()); !strings.Contains(svg, ">kv: 93.3 (91 to 95)<") || !strings.Contains(svg, ">all: 100<") {
		t.Error(svg)
	}
}
