package replay

import (
	_ "embed" // the page and its parts
	"fmt"
	"html/template"
	"io"
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

// Drawing is a figure of the page: a *Plot or *Bars, whose Title and Help stand above it.
type Drawing interface {
	SVG() template.HTML
	Legend() template.HTML
	// Note describes data that is not drawn; Empty: there is nothing to draw.
	Note() string
	Empty() bool
}

// Style is the style of the drawings.
func (*Page) Style() template.CSS { return Style }

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	if err := page.Execute(w, p); err != nil {
		return fmt.Errorf("replay: the HTML report: %w", err)
	}
	return nil
}
