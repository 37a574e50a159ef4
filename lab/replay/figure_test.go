package replay

import (
	"encoding/xml"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// figure is one drawing as it was read back.
type figure struct {
	X, Y   string   // the axes' names with their units; Y is empty of bars
	Limits []string // their names
	Series []string
	Points int // of all series
}

// element is one element of a drawing.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Children []element  `xml:",any"`
	Text     string     `xml:",chardata"`
}

func (e *element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e *element) number(t testing.TB, name string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(e.attr(name), 64)
	if err != nil {
		t.Errorf("%s of <%s>: %v", name, e.XMLName.Local, err)
	}
	return v
}

var (
	drawing = regexp.MustCompile(`(?s)<svg class="plot".*?</svg>`)
	step    = regexp.MustCompile(`([MLHVhvZ])([-0-9.]*) ?([-0-9.]*)`)
	bare    = regexp.MustCompile(`[0-9]{4}`)
)

// area is where points may be.
type area struct{ left, top, right, bottom float64 }

func (a area) holds(x, y float64) bool {
	return x >= a.left && x <= a.right && y >= a.top && y <= a.bottom
}

// checkPlot reads every drawing of a page and returns what it found.
func checkPlot(t testing.TB, page string) []figure {
	t.Helper()
	var all []figure
	for _, text := range drawing.FindAllString(page, -1) {
		var e element
		if err := xml.Unmarshal([]byte(text), &e); err != nil {
			t.Fatalf("a drawing is no XML: %v\n%.300s", err, text)
		}
		all = append(all, check(t, &e))
	}
	return all
}

func check(t testing.TB, e *element) figure {
	t.Helper()
	var f figure
	var inside area
	label := e.attr("aria-label")
	for i := range e.Children {
		c := &e.Children[i]
		switch class := c.attr("class"); {
		case class == "area":
			inside = area{left: c.number(t, "x"), top: c.number(t, "y")}
			inside.right, inside.bottom = inside.left+c.number(t, "width"), inside.top+c.number(t, "height")
		case class == "name x":
			f.X = c.Text
		case class == "name y":
			f.Y = c.Text
		case class == "tick" && bare.MatchString(strings.SplitN(c.Text, ".", 2)[0]):
			t.Errorf("%s: %s has no separator between thousands", label, c.Text)
		case class == "limit":
			f.Limits = append(f.Limits, c.Children[len(c.Children)-1].Text)
			f.points(t, label, inside, c.Children[0].attr("d"), false)
		case c.attr("data-series") != "":
			f.Series = append(f.Series, c.attr("data-series"))
			for k := range c.Children {
				f.shape(t, label, inside, &c.Children[k])
			}
		}
	}
	if f.X == "" {
		t.Errorf("%s: an axis has no name", label)
	}
	if inside.right == 0 {
		t.Errorf("%s: no area", label)
	}
	return f
}

// shape checks one part of a series.
func (f *figure) shape(t testing.TB, label string, inside area, e *element) {
	t.Helper()
	switch e.XMLName.Local {
	case "path":
		f.points(t, label, inside, e.attr("d"), true)
	case "text":
		f.point(t, label, inside, e.number(t, "x"), e.number(t, "y"))
	case "rect":
		f.point(t, label, inside, e.number(t, "x"), e.number(t, "y"))
		f.point(t, label, inside, e.number(t, "x")+e.number(t, "width"), e.number(t, "y"))
	}
}

// points checks a path, which is written in absolute coordinates but for the ends of dots and whiskers.
func (f *figure) points(t testing.TB, label string, inside area, d string, count bool) {
	t.Helper()
	x, y := 0.0, 0.0
	for _, m := range step.FindAllStringSubmatch(d, -1) {
		one, _ := strconv.ParseFloat(m[2], 64)
		two, _ := strconv.ParseFloat(m[3], 64)
		switch m[1] {
		case "M", "L":
			x, y = one, two
		case "H":
			x = one
		case "V":
			y = one
		case "h":
			x += one
		case "v":
			y += one
		case "Z":
			continue
		}
		if count {
			f.point(t, label, inside, x, y)
		} else if !inside.holds(x, y) {
			t.Errorf("%s: a limit at %v, %v is outside", label, x, y)
		}
	}
}

func (f *figure) point(t testing.TB, label string, inside area, x, y float64) {
	t.Helper()
	f.Points++
	if !inside.holds(x, y) {
		t.Errorf("%s: a point at %v, %v is outside %v", label, x, y, inside)
	}
}
