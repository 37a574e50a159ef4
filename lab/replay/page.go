package replay

import (
	_ "embed" // the page and its parts
	"fmt"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// Page is a report as one page that needs nothing else: style, script and data are inside.
type Page struct {
	Title, Subtitle string
	Verdict         string   // the one sentence
	Lines           []string // further remarks
	Notes           []string // what a reader must know before believing it
	Tables          []Table
	Plots           []Drawing
}

// Table is a table of the page. A heading's prefix selects its column's style:
// "#" numbers, "?" explanations, "!" what is bad.
type Table struct {
	Title string
	Head  []string
	Rows  [][]string
}

// columns are the looks by their prefix.
var columns = map[byte]string{'#': "n", '?': "faint", '!': "bad"}

// Class is the look of a column.
func (t Table) Class(column int) string {
	if h := t.Head[column]; h != "" {
		return columns[h[0]]
	}
	return ""
}

// Drawing is a figure of the page: a *Plot or *Bars, whose Title and Help stand above it.
type Drawing interface {
	SVG() template.HTML
	Legend() template.HTML
	// Note describes data that is not drawn; Empty: there is nothing to draw.
	Note() string
	Empty() bool
}

// pageData is the template's data.
type pageData struct {
	*Page
	Style template.CSS
}

// Sheet is tables with what reads their headings.
func (pageData) Sheet(tables []Table) sheet { return sheet{tables} }

// sheet is the data of the tables' template.
type sheet struct{ Tables []Table }

// Name is the name of a table without a title.
func (s sheet) Name(t Table) string {
	if t.Title != "" {
		return t.Title
	}
	for _, h := range t.Head {
		if label := s.Label(h); label != "" {
			return "Table by " + label
		}
	}
	return "Table"
}

// Number reports whether a heading is over numbers.
func (sheet) Number(head string) bool { return strings.HasPrefix(head, "#") }

// Label is a heading without its prefix.
func (sheet) Label(head string) string { return strings.TrimLeft(head, "#?!") }

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	data := pageData{Page: p, Style: Style}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("replay: the HTML report: %w", err)
	}
	return nil
}
