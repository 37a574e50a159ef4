package main

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// index is the page on which a reader begins. Its headings of the second level are the chapters; the first link of
// each entry of a list below them is a page, in the order in which the book is read.
const index = "docs/README.md"

// book is the tree's Markdown, read from the index on along its links.
type book struct {
	tree     fs.FS
	pages    map[string]*page  // by source
	files    map[string][]byte // pictures and other files that pages link to, by source
	chapters []chapter
	order    []*page // the index, the chapters' pages, then those that only a link leads to
	named    int     // how many of order the index names, itself included
	broken   []string
}

// chapter is a heading of the index with the pages below it.
type chapter struct {
	Title string
	Pages []*page
}

// page is one Markdown file.
type page struct {
	Source, target string // paths, from the tree's root and from the site's
	Title, Name    string // its heading, and what the index calls it
	text           []byte
	doc            ast.Node
	anchors        map[string]bool
	rows           []string  // ids of rows, to which forges have no link
	Sections       []section // headings of the second level
	links          []link
}

type section struct{ Anchor, Title string }

// link is a relative link or picture of a page.
type link struct {
	destination    *[]byte // in the document, rewritten for the site
	source, anchor string
}

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.Table),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(elements{}, 100))),
)

// read reads the index and every page that it leads to. The error names each link that leads nowhere.
func read(tree fs.FS) (*book, error) {
	b := &book{tree: tree, pages: map[string]*page{}, files: map[string][]byte{}}
	if err := b.add(index); err != nil {
		return nil, err
	}
	for _, p := range b.pages {
		for _, l := range p.links {
			if to := b.pages[l.source]; to != nil && l.anchor != "" && !to.anchors[l.anchor] {
				b.broken = append(b.broken, fmt.Sprintf("%s links to %s#%s: there is no such heading", p.Source, l.source, l.anchor))
			}
		}
	}
	b.arrange()
	if len(b.broken) > 0 {
		slices.Sort(b.broken)
		return nil, fmt.Errorf("%d links lead nowhere:\n%s", len(b.broken), strings.Join(b.broken, "\n"))
	}
	return b, nil
}

// add reads a page, and then those that it links to.
func (b *book) add(source string) error {
	data, err := fs.ReadFile(b.tree, source)
	if err != nil {
		return err
	}
	p := &page{Source: source, target: target(source), Title: path.Base(source), text: data, anchors: map[string]bool{}}
	b.pages[source] = p
	p.doc = markdown.Parser().Parse(text.NewReader(data), parser.WithContext(parser.NewContext(parser.WithIDs(headings{p.anchors}))))
	err = ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			if title := plain(n, data); n.Level == 1 {
				p.Title = title
			} else if n.Level == 2 {
				p.Sections = append(p.Sections, section{anchor(n), title})
			}
		case *east.TableRow:
			p.row(n)
		case *ast.Link:
			p.link(&n.Destination)
		case *ast.Image:
			p.link(&n.Destination)
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return err
	}
	for _, l := range p.links {
		if err := b.follow(p, l.source); err != nil {
			return err
		}
	}
	return nil
}

// row gives a table's row that begins with one name in backticks, a setting's say, that name as its id.
func (p *page) row(n *east.TableRow) {
	cell := n.FirstChild()
	if cell == nil || cell.ChildCount() != 1 || cell.FirstChild().Kind() != ast.KindCodeSpan {
		return
	}
	id := "row-" + strings.Trim(plain(cell, p.text), "-")
	if !slices.Contains(p.rows, id) && !strings.Contains(id, " ") {
		n.SetAttributeString("id", []byte(id))
		p.rows = append(p.rows, id)
	}
}

var elsewhere = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:|^//`)

// link takes a relative link in. Others stay as they are.
func (p *page) link(destination *[]byte) {
	to := string(*destination)
	if elsewhere.MatchString(to) {
		return
	}
	file, anchor, _ := strings.Cut(to, "#")
	source := p.Source
	if file != "" {
		source = path.Join(path.Dir(p.Source), file)
	}
	p.links = append(p.links, link{destination, source, anchor})
}

// follow reads what a page links to: another page, or a file that the site gets a copy of.
func (b *book) follow(p *page, source string) error {
	if b.pages[source] != nil || b.files[source] != nil {
		return nil
	}
	info, err := fs.Stat(b.tree, source)
	switch {
	case err != nil:
		b.broken = append(b.broken, fmt.Sprintf("%s links to %s, which is not there", p.Source, source))
	case info.IsDir():
		b.broken = append(b.broken, fmt.Sprintf("%s links to the folder %s: link to a file in it", p.Source, source))
	case path.Ext(source) == ".md":
		return b.add(source)
	case path.Ext(source) == ".go":
		b.broken = append(b.broken, fmt.Sprintf("%s links to %s: name source code, do not link to it", p.Source, source))
	default:
		b.files[source], err = fs.ReadFile(b.tree, source)
		return err
	}
	return nil
}

// arrange reads the order of the book off the index.
func (b *book) arrange() {
	start := b.pages[index]
	start.Name, b.order = "Contents", []*page{start}
	for n := start.doc.FirstChild(); n != nil; n = n.NextSibling() {
		switch n := n.(type) {
		case *ast.Heading:
			if n.Level == 2 {
				b.chapters = append(b.chapters, chapter{Title: plain(n, start.text)})
			}
		case *ast.List:
			for item := n.FirstChild(); item != nil && len(b.chapters) > 0; item = item.NextSibling() {
				last := &b.chapters[len(b.chapters)-1]
				if p, name := b.firstLink(item); p != nil && !slices.Contains(b.order, p) {
					p.Name, b.order, last.Pages = name, append(b.order, p), append(last.Pages, p)
				}
			}
		}
	}
	b.named = len(b.order)
	for _, source := range slices.Sorted(maps.Keys(b.pages)) {
		if p := b.pages[source]; !slices.Contains(b.order, p) {
			p.Name, b.order = p.Title, append(b.order, p)
		}
	}
}

// firstLink is the page that the first link of an entry of the index leads to, and the link's text; nil without one.
func (b *book) firstLink(item ast.Node) (p *page, name string) {
	_ = ast.Walk(item, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		l, ok := n.(*ast.Link)
		if !ok || !entering {
			return ast.WalkContinue, nil
		}
		for _, known := range b.pages[index].links {
			if known.destination == &l.Destination {
				p, name = b.pages[known.source], plain(l, b.pages[index].text)
			}
		}
		return ast.WalkStop, nil
	})
	return p, name
}

// target is where a file of the tree lies in the site: docs/ is its top.
func target(source string) string {
	if source == index {
		return "index.html"
	}
	short := strings.TrimPrefix(source, "docs/")
	if stem, ok := strings.CutSuffix(short, ".md"); ok {
		return stem + ".html"
	}
	return short
}

// headings names headings as forges do, so that one link leads there and in the site.
type headings struct{ used map[string]bool }

// Generate is part of parser.IDs.
func (h headings) Generate(value []byte, _ ast.NodeKind) []byte {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(string(value)))
	unique := name
	for i := 1; h.used[unique]; i++ {
		unique = fmt.Sprintf("%s-%d", name, i)
	}
	h.used[unique] = true
	return []byte(unique)
}

// Put is part of parser.IDs.
func (h headings) Put(value []byte) { h.used[string(value)] = true }

// anchor is the id of a heading or a row; empty without one.
func anchor(n ast.Node) string {
	id, _ := n.AttributeString("id")
	name, _ := id.([]byte)
	return string(name)
}

// plain is what a reader sees of a node, without marks.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch {
		case !entering:
			if n.Type() == ast.TypeBlock {
				b.WriteByte(' ')
			}
		case n.Kind() == ast.KindText:
			b.Write(n.(*ast.Text).Segment.Value(source))
			if t := n.(*ast.Text); t.SoftLineBreak() || t.HardLineBreak() {
				b.WriteByte(' ')
			}
		case n.Kind() == ast.KindCodeBlock, n.Kind() == ast.KindFencedCodeBlock:
			for i := range n.Lines().Len() {
				line := n.Lines().At(i)
				b.Write(line.Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.Join(strings.Fields(b.String()), " ")
}
