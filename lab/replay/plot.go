package replay

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// Axis is the meaning of the values along one side.
type Axis struct {
	Name string // "TTFT"
	Unit string // "s"; empty for none. Of "%" the axis runs from 0 to 100
	Log  bool   // values of 0 and below are not drawn
}

// Label is the axis as a reader sees it.
func (a Axis) Label() string {
	text := a.Name
	if a.Unit != "" {
		text += ", " + a.Unit
	}
	if a.Log {
		text += " (log)"
	}
	return text
}

// Limit is a line across the plot: what a value is held to.
type Limit struct {
	Name string
	At   float64
	OnX  bool // the limit is one of x: the line is upright
}

// Series is one line. X and Y are of equal length.
type Series struct {
	Name string
	X, Y []float64
}

// Plot is lines over two axes, drawn as SVG: at most MostSeries, which differ by colour, dash and marker. Every value is
// inside its area.
type Plot struct {
	Title, Help string
	X, Y        Axis
	Limits      []Limit
	Dots        bool // dots and no line
	Marks       bool // a marker at every point
	Steps       bool // each value holds until the next
	Series      []Series
}

// MostSeries is how many series a plot draws: people cannot distinguish more.
const MostSeries = 8

// dashes and shapes set series apart from each other where colours do not.
var (
	dashes = [MostSeries]string{"none", "8 4", "2 3", "9 3 2 3", "14 4", "5 2 1 2 1 2", "1 5", "12 3 3 3 3 3"}
	shapes = [MostSeries]string{"●", "■", "▲", "◆", "○", "□", "△", "◇"}
)

// Size of a drawing in its own units, which are about the pixels of a phone's column, and the area inside it.
const (
	width, height            = 400.0, 260.0
	left, right, top, bottom = 54.0, 388.0, 30.0, 216.0
	inset                    = 5.0 // between the area's edge and the outermost value: markers stay whole
)

// Empty reports whether there is nothing to draw.
func (p *Plot) Empty() bool {
	for _, s := range p.Series {
		for i := range s.X {
			if p.drawn(s, i) {
				return false
			}
		}
	}
	return true
}

// drawn reports whether a value has a place on the plot.
func (p *Plot) drawn(s Series, i int) bool {
	fits := func(v float64, a Axis) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) && (!a.Log || v > 0) }
	return fits(s.X[i], p.X) && fits(s.Y[i], p.Y)
}

// shown are the series that are drawn.
func (p *Plot) shown() []Series { return p.Series[:min(len(p.Series), MostSeries)] }

// Note describes data that is not drawn; empty without such data.
func (p *Plot) Note() string {
	if more := len(p.Series) - MostSeries; more > 0 {
		return fmt.Sprintf("%d of %d lines are drawn; the tables have all.", MostSeries, len(p.Series))
	}
	return ""
}

// SVG is the drawing. The page's style has the colours: see Style.
func (p *Plot) SVG() template.HTML {
	var b strings.Builder
	x, y := p.scales()
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height,
		html.EscapeString(p.Title+": "+p.Y.Label()+" over "+p.X.Label()))
	p.axes(&b, x, y)
	for i, s := range p.shown() {
		fmt.Fprintf(&b, `<g class="s%d" data-series="%s">`, i, html.EscapeString(s.Name))
		p.line(&b, s, i, x, y)
		b.WriteString("</g>")
	}
	p.limits(&b, x, y)
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// Legend names the series, each with a piece of its line; empty where there is one.
func (p *Plot) Legend() template.HTML {
	if len(p.Series) < 2 {
		return ""
	}
	var b strings.Builder
	b.WriteString(`<ul class="legend">`)
	for i, s := range p.shown() {
		fmt.Fprintf(&b, `<li class="s%d"><svg viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">`, i)
		if !p.Dots {
			fmt.Fprintf(&b, `<path class="line" d="M1 6H33" stroke-dasharray="%s"/>`, dashes[i])
		}
		if p.Dots || p.Marks {
			fmt.Fprintf(&b, `<text class="mark" x="17" y="10">%s</text>`, shapes[i])
		}
		fmt.Fprintf(&b, `</svg>%s</li>`, html.EscapeString(s.Name))
	}
	b.WriteString("</ul>")
	return template.HTML(b.String())
}

// scales are those of both axes, which hold every value and every limit.
func (p *Plot) scales() (x, y scale) {
	var xs, ys []float64
	for _, s := range p.shown() {
		for i := range s.X {
			if p.drawn(s, i) {
				xs, ys = append(xs, s.X[i]), append(ys, s.Y[i])
			}
		}
	}
	for _, l := range p.Limits {
		if l.OnX {
			xs = append(xs, l.At)
		} else {
			ys = append(ys, l.At)
		}
	}
	x = newScale(p.X, xs, left+inset, right-inset, 6, false)
	y = newScale(p.Y, ys, bottom-inset, top+inset, 5, true)
	return x, y
}

// axes draws the area, its grid and the axes' texts.
func (p *Plot) axes(b *strings.Builder, x, y scale) {
	fmt.Fprintf(b, `<rect class="area" x="%g" y="%g" width="%g" height="%g"/>`, left, top, right-left, bottom-top)
	for _, v := range y.ticks {
		fmt.Fprintf(b, `<path class="grid" d="M%g %.1fH%g"/><text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, left,
			y.at(v), right, left-6, y.at(v)+4, Number(v))
	}
	for _, v := range x.ticks {
		fmt.Fprintf(b, `<path class="grid" d="M%.1f %gV%g"/><text class="tick" x="%.1f" y="%g" text-anchor="middle">%s</text>`, x.at(v),
			top, bottom, x.at(v), bottom+16, Number(v))
	}
	fmt.Fprintf(b, `<text class="name x" x="%g" y="%g" text-anchor="middle">%s</text>`, (left+right)/2, bottom+36,
		html.EscapeString(p.X.Label()))
	fmt.Fprintf(b, `<text class="name y" x="4" y="16">%s</text>`, html.EscapeString(p.Y.Label()))
}

// mostTitles is how many points of a series show their values to a pointer.
const mostTitles = 60

// line draws one series.
func (p *Plot) line(b *strings.Builder, s Series, style int, x, y scale) {
	var path strings.Builder
	var points [][2]float64
	open := false
	for i := range s.X {
		if !p.drawn(s, i) {
			continue
		}
		px, py := x.at(s.X[i]), y.at(s.Y[i])
		points = append(points, [2]float64{px, py})
		switch {
		case p.Dots:
			fmt.Fprintf(&path, "M%.1f %.1fh0", px, py)
		case !open:
			fmt.Fprintf(&path, "M%.1f %.1f", px, py)
		case p.Steps:
			fmt.Fprintf(&path, "H%.1fV%.1f", px, py)
		default:
			fmt.Fprintf(&path, "L%.1f %.1f", px, py)
		}
		open = true
	}
	if len(points) == 0 {
		return
	}
	if p.Dots {
		fmt.Fprintf(b, `<path class="dots" d="%s"/>`, path.String())
	} else {
		fmt.Fprintf(b, `<path class="line" d="%s" stroke-dasharray="%s"/>`, path.String(), dashes[style])
	}
	alone := len(points) == 1 && !p.Dots // a line of one point would not be seen
	if p.Marks || alone {
		n := 0
		for i := range s.X {
			if !p.drawn(s, i) {
				continue
			}
			fmt.Fprintf(b, `<text class="mark" x="%.1f" y="%.1f">%s`, points[n][0], points[n][1]+4, shapes[style])
			if len(points) <= mostTitles {
				fmt.Fprintf(b, `<title>%s: %s %s, %s %s</title>`, html.EscapeString(s.Name), Number(s.X[i]), html.EscapeString(p.X.Unit),
					Number(s.Y[i]), html.EscapeString(p.Y.Unit))
			}
			b.WriteString("</text>")
			n++
		}
	}
}

// limits draws the limits with their names, above everything else.
func (p *Plot) limits(b *strings.Builder, x, y scale) {
	for _, l := range p.Limits {
		name := html.EscapeString(l.Name)
		if l.OnX {
			at, anchor := x.at(l.At), "end"
			text := at - 4
			if at < (left+right)/2 {
				anchor, text = "start", at+4
			}
			fmt.Fprintf(b, `<g class="limit"><path d="M%.1f %gV%g"/><text x="%.1f" y="%g" text-anchor="%s">%s</text></g>`, at, top, bottom,
				text, bottom-8, anchor, name)
			continue
		}
		at := y.at(l.At)
		text := at - 4
		if text < top+12 {
			text = at + 13
		}
		fmt.Fprintf(b, `<g class="limit"><path d="M%g %.1fH%g"/><text x="%g" y="%.1f" text-anchor="end">%s</text></g>`, left, at, right,
			right-4, text, name)
	}
}
