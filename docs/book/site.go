package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

//go:embed page.html.tmpl book.css book.js
var assets embed.FS

var frame = template.Must(template.ParseFS(assets, "page.html.tmpl"))

// searchFile holds the text of every section, for the search in the reader's browser.
const searchFile = "search.js"

// leaf is what the frame is filled with.
type leaf struct {
	*page
	Home           string // the way from the page to the site's top, "" or "../"
	Chapters       []chapter
	Body           template.HTML
	Version        string
	Before, Behind *page
}

// Href is the way from this page to another.
func (l leaf) Href(to *page) string { return relative(l.page, to.target) }

func relative(from *page, target string) string {
	way, err := filepath.Rel(filepath.Dir(from.target), target)
	if err != nil {
		panic(err) // both are relative
	}
	return filepath.ToSlash(way)
}

// site returns every file of the site by its path.
func (b *book) site(version string) (map[string][]byte, error) {
	site := map[string][]byte{}
	for source, data := range b.files {
		site[target(source)] = data
	}
	for _, name := range []string{"book.css", "book.js"} {
		data, err := assets.ReadFile(name)
		if err != nil {
			return nil, err
		}
		site[name] = data
	}
	for i, p := range b.order {
		l := leaf{page: p, Chapters: b.chapters, Version: version, Home: strings.TrimSuffix(relative(p, "x"), "x")}
		if i > 0 && i < b.named {
			l.Before = b.order[i-1]
		}
		if i+1 < b.named {
			l.Behind = b.order[i+1]
		}
		var body, whole bytes.Buffer
		b.relink(p)
		if err := markdown.Renderer().Render(&body, p.text, p.doc); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Source, err)
		}
		l.Body = template.HTML(body.String()) // goldmark's, which escapes what is not Markdown
		if err := frame.Execute(&whole, l); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Source, err)
		}
		if site[p.target] != nil {
			return nil, fmt.Errorf("%s: another file of the site is %s too", p.Source, p.target)
		}
		site[p.target] = whole.Bytes()
	}
	var err error
	site[searchFile], err = b.searchable()
	return site, err
}

// relink turns a page's links to files of the tree into links to files of the site.
func (b *book) relink(p *page) {
	for _, l := range p.links {
		to := ""
		if l.source != p.Source {
			to = relative(p, target(l.source))
		}
		if l.anchor != "" {
			to += "#" + l.anchor
		}
		*l.destination = []byte(to)
	}
}

// searchable is a script that sets tandemBook to one entry for each heading, and for each row that has an id: where
// it is, the page's name, the heading or the row's name, and its text.
func (b *book) searchable() ([]byte, error) {
	var entries [][4]string
	for _, p := range b.order {
		entry := [4]string{p.target, p.Name, ""}
		var words []string
		add := func() {
			entry[3] = strings.Join(words, " ")
			entries, words = append(entries, entry), nil
		}
		for n := p.doc.FirstChild(); n != nil; n = n.NextSibling() {
			if h, ok := n.(*ast.Heading); ok && h.Level > 1 {
				add()
				entry = [4]string{p.target + "#" + anchor(h), p.Name, plain(h, p.text)}
				continue
			}
			if n.Kind() == ast.KindHeading {
				continue
			}
			words = append(words, plain(n, p.text))
			for row := n.FirstChild(); n.Kind() == east.KindTable && row != nil; row = row.NextSibling() {
				if id := anchor(row); id != "" {
					entries = append(entries, [4]string{p.target + "#" + id, p.Name, plain(row.FirstChild(), p.text), plain(row, p.text)})
				}
			}
		}
		add()
	}
	data, err := json.Marshal(entries)
	return slices.Concat([]byte("tandemBook="), data, []byte(";\n")), err
}

// elements are those whose HTML is another than goldmark's: a wide table scrolls by itself, and a heading has a link
// to itself.
type elements struct{}

// RegisterFuncs is part of renderer.NodeRenderer.
func (elements) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(east.KindTable, func(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
		html := "</table></div>\n"
		if entering {
			html = "<div class=\"table\"><table>\n"
		}
		_, err := w.WriteString(html)
		return ast.WalkContinue, err
	})
	r.Register(ast.KindHeading, func(w util.BufWriter, _ []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
		level, name := n.(*ast.Heading).Level, template.HTMLEscapeString(anchor(n))
		html := fmt.Sprintf("<h%d id=\"%s\">", level, name)
		if !entering {
			html = fmt.Sprintf(" <a class=\"anchor\" href=\"#%s\" aria-label=\"link to this heading\">#</a></h%d>\n", name, level)
		}
		_, err := w.WriteString(html)
		return ast.WalkContinue, err
	})
}
