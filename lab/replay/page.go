package replay

import (
	_ "embed" // the page and its parts
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
)

var (
	//go:embed page.html.tmpl
	pageText string
	//go:embed uplot/uPlot.iife.min.js
	uplotJS string
	//go:embed uplot/uPlot.min.css
	uplotCSS string
	//go:embed uplot/LICENSE
	uplotLicense string
)

var page = template.Must(template.New("page").Parse(pageText))

// Page is a report as one page that needs nothing else: style, script and data
// are inside.
type Page struct {
	Title, Subtitle string
	Verdict         string   // the one sentence
	Lines           []string // further remarks
	Notes           []string // what a reader must know before believing it
	Tables          []Table
	Plots           []Plot
	Appendix        []Table // below the plots
}

// Table is a table of the page. A heading's prefix says how its column looks:
// "#" numbers, "?" explanations, "!" what is bad, "|" a bar of so many percent.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// columns are the looks by their prefix.
var columns = map[byte]string{'#': "n", '?': "faint", '!': "bad", '|': "bar"}

// Class is the look of a column.
func (t Table) Class(column int) string {
	if h := t.Head[column]; h != "" {
		return columns[h[0]]
	}
	return ""
}

// Bar reports whether a column shows bars.
func (t Table) Bar(column int) bool { return t.Class(column) == "bar" }

// Plot is a plot of the page: lines over one axis.
type Plot struct {
	Title, Help string
	X, Y        string // the axes' units; "%" runs from 0 to 100
	LogX, LogY  bool
	Fill        bool    // the area below the line
	Dots        bool    // dots and no line
	Marks       bool    // dots that can be distinguished
	Steps       bool    // each value holds until the next
	Level       float64 // where to draw a level line; 0 for none
	Series      []Series
}

// Series is one line. Values of X that others do not have are gaps of theirs.
type Series struct {
	Name string
	X, Y []float64
}

// drawn is a plot as the page's script takes it.
type drawn struct {
	X     string   `json:"x"`
	Y     string   `json:"y"`
	LogX  bool     `json:"log_x"`
	LogY  bool     `json:"log_y"`
	Fill  bool     `json:"fill"`
	Dots  bool     `json:"dots"`
	Marks bool     `json:"marks"`
	Steps bool     `json:"steps"`
	Level float64  `json:"level"`
	Names []string `json:"names"`
	// Data are the values of x, then those of each line, null where it has none.
	Data  [][]*float64 `json:"data"`
	Title string       `json:"-"`
	Help  string       `json:"-"`
}

// drawn puts all lines over one axis, as the plots' library wants them.
func (p *Plot) drawn() drawn {
	d := drawn{X: p.X, Y: p.Y, LogX: p.LogX, LogY: p.LogY, Fill: p.Fill, Dots: p.Dots, Marks: p.Marks, Steps: p.Steps, Level: p.Level, Title: p.Title, Help: p.Help}
	shared := len(p.Series) > 0
	for _, s := range p.Series {
		d.Names = append(d.Names, s.Name)
		shared = shared && slices.Equal(s.X, p.Series[0].X)
	}
	if shared { // the axis need not be strictly growing then
		d.Data = append(d.Data, pointers(p.Series[0].X))
		for _, s := range p.Series {
			d.Data = append(d.Data, pointers(s.Y))
		}
		return d
	}
	at := map[float64]int{}
	for _, s := range p.Series {
		for _, x := range s.X {
			at[x] = 0
		}
	}
	axis := slices.Sorted(maps.Keys(at))
	for i, x := range axis {
		at[x] = i
	}
	d.Data = append(d.Data, pointers(axis))
	for _, s := range p.Series {
		line := make([]*float64, len(axis))
		for i, x := range s.X {
			line[at[x]] = &s.Y[i]
		}
		d.Data = append(d.Data, line)
	}
	return d
}

func pointers(xs []float64) []*float64 {
	out := make([]*float64, len(xs))
	for i := range xs {
		out[i] = &xs[i]
	}
	return out
}

// pageData is what the template reads.
type pageData struct {
	*Page
	Plots   []drawn
	JS      template.JS
	CSS     template.CSS
	License string
}

// Sheet is tables with what reads their headings.
func (pageData) Sheet(tables []Table) sheet { return sheet{tables} }

// sheet is what the tables' template reads.
type sheet struct{ Tables []Table }

// Number reports whether a heading is over numbers.
func (sheet) Number(head string) bool { return strings.HasPrefix(head, "#") }

// Label is a heading without its prefix.
func (sheet) Label(head string) string { return strings.TrimLeft(head, "#?!|") }

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	data := pageData{Page: p, Plots: []drawn{}, JS: template.JS(uplotJS), CSS: template.CSS(uplotCSS), License: uplotLicense}
	for i := range p.Plots {
		data.Plots = append(data.Plots, p.Plots[i].drawn())
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("replay: the HTML report: %w", err)
	}
	return nil
}
