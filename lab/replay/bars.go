package replay

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// Bar is one value with the range that it comes from.
type Bar struct {
	Name            string
	Value, Min, Max float64
}

// Bars compares one value of several things: a bar each, with a whisker over its range.
type Bars struct {
	Title, Help string
	Axis        Axis
	Limits      []Limit // of the axis
	Bars        []Bar
}

// rowHeight is that of a bar with its name above it.
const rowHeight = 34.0

// Height of the drawing, in the units of its width.
func (p *Bars) height() float64 { return 12 + rowHeight*float64(len(p.Bars)) + 44 }

// SVG is the drawing.
func (p *Bars) SVG() template.HTML {
	var b strings.Builder
	end := p.height() - 44
	var values []float64
	for _, bar := range p.Bars {
		values = append(values, bar.Value, bar.Min, bar.Max)
	}
	for _, l := range p.Limits {
		values = append(values, l.At)
	}
	const begin = 12.0
	x := newScale(p.Axis, values, begin+inset, right-inset, 6, true)
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, p.height(),
		html.EscapeString(p.Title+": "+p.Axis.Label()))
	fmt.Fprintf(&b, `<rect class="area" x="%g" y="4" width="%g" height="%g"/>`, begin, right-begin, end-4)
	for _, v := range x.ticks {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f 4V%g"/><text class="tick" x="%.1f" y="%g" text-anchor="middle">%s</text>`, x.at(v),
			end, x.at(v), end+16, Number(v))
	}
	for i, bar := range p.Bars {
		at := 12 + rowHeight*float64(i)
		text := Number(math.Round(bar.Value*10) / 10)
		if bar.Min != bar.Max {
			text += " (" + Number(math.Round(bar.Min*10)/10) + " to " + Number(math.Round(bar.Max*10)/10) + ")"
		}
		fmt.Fprintf(&b, `<g class="s0" data-series="%s"><text class="bar-name" x="%g" y="%g">%s: %s</text>`, html.EscapeString(bar.Name),
			begin+inset+2, at+10, html.EscapeString(bar.Name), text)
		fmt.Fprintf(&b, `<rect class="value" x="%.1f" y="%g" width="%.1f" height="10"/>`, x.at(0), at+15, max(1, x.at(bar.Value)-x.at(0)))
		if bar.Min != bar.Max {
			fmt.Fprintf(&b, `<path class="whisker" d="M%.1f %gH%.1fM%.1f %gv8M%.1f %gv8"/>`, x.at(bar.Min), at+20, x.at(bar.Max),
				x.at(bar.Min), at+16, x.at(bar.Max), at+16)
		}
		b.WriteString("</g>")
	}
	for _, l := range p.Limits {
		fmt.Fprintf(&b, `<g class="limit"><path d="M%.1f 4V%g"/><text x="%.1f" y="%g" text-anchor="end">%s</text></g>`, x.at(l.At), end,
			x.at(l.At)-3, end+28, html.EscapeString(l.Name))
	}
	fmt.Fprintf(&b, `<text class="name x" x="%g" y="%g">%s</text></svg>`, begin, end+36, html.EscapeString(p.Axis.Label()))
	return template.HTML(b.String())
}

// Legend is empty: each bar has its name.
func (p *Bars) Legend() template.HTML { return "" }

// Note is empty: every bar is drawn.
func (p *Bars) Note() string { return "" }

// Empty reports whether there is nothing to draw.
func (p *Bars) Empty() bool { return len(p.Bars) == 0 }
