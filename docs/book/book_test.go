package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

// thisTree is the book of this tree and its site, made once.
var thisTree = sync.OnceValues(func() (b *book, err error) {
	if b, err = read(os.DirFS("../..")); err == nil {
		treeSite, err = b.site("v1")
	}
	return b, err
})

var treeSite map[string][]byte

// The book of this tree: no link leads nowhere, every Markdown file can be reached from the index, every page of
// docs is in a chapter, and the site asks no other host for anything.
func TestThisTreesBook(t *testing.T) {
	b, err := thisTree()
	if err != nil {
		t.Fatal(err)
	}
	err = fs.WalkDir(b.tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "testdata", "bin", "site"}, d.Name()):
			return fs.SkipDir
		case path.Ext(name) == ".md" && b.pages[name] == nil:
			t.Errorf("%s cannot be reached from %s", name, index)
		case path.Ext(name) == ".md" && strings.HasPrefix(name, "docs/") && !slices.Contains(b.order[:b.named], b.pages[name]):
			t.Errorf("%s is in no chapter of %s", name, index)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	site := treeSite
	asks := regexp.MustCompile(`<(?:script|img|link|iframe)[^>]+(?:src|href)="(?:https?:)?//|@import|url\(|fetch\(`)
	for name, data := range site {
		if found := asks.Find(data); found != nil && slices.Contains([]string{".html", ".css", ".js"}, path.Ext(name)) && name != searchFile {
			t.Errorf("%s asks another host: %s", name, found)
		}
	}
	var entries [][4]string
	if err := json.Unmarshal(bytes.TrimSuffix(bytes.TrimPrefix(site[searchFile], []byte("tandemBook=")), []byte(";\n")), &entries); err != nil || len(entries) < 200 {
		t.Errorf("%d entries to search, error %v", len(entries), err)
	}
	for _, e := range entries {
		if file, _, _ := strings.Cut(e[0], "#"); site[file] == nil {
			t.Errorf("the search leads to %s, which is not in the site", e[0])
		}
	}
}

// In the site each relative link leads to a file that is there, and to an anchor that is in it.
func TestSitesLinks(t *testing.T) {
	if _, err := thisTree(); err != nil {
		t.Fatal(err)
	}
	site, ids := treeSite, map[string]bool{}
	for name, data := range site {
		for _, m := range regexp.MustCompile(` id="([^"]*)"`).FindAllSubmatch(data, -1) {
			ids[name+"#"+string(m[1])] = true
		}
	}
	links, found := regexp.MustCompile(`(?:href|src)="([^"]*)"`), 0
	for name, data := range site {
		if path.Ext(name) != ".html" {
			continue
		}
		for _, m := range links.FindAllSubmatch(data, -1) {
			to := string(m[1])
			if elsewhere.MatchString(to) {
				continue
			}
			found++
			file, anchor, _ := strings.Cut(to, "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if site[target] == nil || anchor != "" && !ids[target+"#"+anchor] {
				t.Errorf("%s links to %s", name, to)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d links were found", found)
	}
}

func TestReadFindsBrokenLinks(t *testing.T) {
	tests := []struct{ text, want string }{
		{"[x](a.md)", ""},
		{"[x](a.md#one--two-2)", "a.md#one--two-2: there is no such heading"},
		{"[x](a.md#one--two) [x](a.md#one--two-1)", ""},
		{"[x](#here)\n\n## Here", ""},
		{"[x](#there)", "docs/README.md#there: there is no such heading"},
		{"![x](b.svg) [y][z]\n\n[z]: b.svg", ""},
		{"![x](none.svg)", "docs/none.svg, which is not there"},
		{"[x][y]\n\n[y]: none.md", "docs/none.md, which is not there"},
		{"[x](sub)", "the folder docs/sub: link to a file"},
		{"[x](../p.go)", "p.go: name source code"},
		{"`[x](none.md)` [x](https://host/none) [y](mailto:a@b)\n\n```\n[x](none.md)\n```", ""},
		{"[x](a.md)\n\n[y](sub/c.md)", "sub/c.md links to docs/sub/none.md"},
	}
	for _, tt := range tests {
		_, err := read(fstest.MapFS{
			index:           {Data: []byte("# Book\n\n" + tt.text)},
			"docs/a.md":     {Data: []byte("# A\n\n## One & `two`\n\n### One & two\n")},
			"docs/b.svg":    {Data: []byte("<svg/>")},
			"docs/sub/c.md": {Data: []byte("[x](none.md)")},
			"p.go":          {Data: []byte("package p")},
		})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: %v, want %q", tt.text, err, tt.want)
		}
	}
}

func TestPages(t *testing.T) {
	b, err := read(fstest.MapFS{
		index:               {Data: []byte("# Book\n\n[z](z.md)\n\n## Begin\n\n- [B](b.md): see [A](ref/a.md)\n- [A](ref/a.md#two)\n- words\n\n## End\n\n- [B](b.md)\n")},
		"docs/b.md":         {Data: []byte("# B & C\n\n| x | y |\n|---|---|\n| `--a-b` | one |\n| `--a-b` | two |\n| a `<i>` | <script>alert(1)</script> |\n")},
		"docs/ref/a.md":     {Data: []byte("# A\n\nfirst\n\n## Two\n\nsecond [up](../b.md), [lic](../../LICENSE)\n")},
		"docs/z.md":         {Data: []byte("# Z\n")},
		"LICENSE":           {Data: []byte("free")},
		"docs/unlinked.svg": {Data: []byte("<svg/>")},
	})
	if err != nil {
		t.Fatal(err)
	}
	site, err := b.site("v9")
	if err != nil {
		t.Fatal(err)
	}
	contains := map[string][]string{
		"index.html":    {`<a class="next" href="b.html" rel="next">`, `Tandem v9`},
		"b.html":        {`<div class="table"><table>`, `<code>&lt;i&gt;</code>`, "<tr id=\"row-a-b\">\n<td><code>--a-b</code></td>\n<td>one</td>", "<tr>\n<td><code>--a-b</code></td>\n<td>two</td>", `<h1 id="b--c">`, `<title>B &amp; C · Tandem`, `href="ref/a.html" rel="next">A →`, `aria-current="page">B</a>`},
		"ref/a.html":    {`<a href="../b.html">up</a>`, `<a href="../LICENSE">lic</a>`, `src="../book.js"`, `<li><a href="#two">Two</a></li>`, `<h2 id="two">Two <a class="anchor" href="#two"`},
		"z.html":        {`<h1 id="z">Z`},
		searchFile:      {`["ref/a.html","A","","first"],["ref/a.html#two","A","Two","second up, lic"]`, `["b.html#row-a-b","B","--a-b","--a-b one"]`},
		"LICENSE":       {"free"},
		"book.css":      {"@media print"},
		"unlinked.svg":  nil,
		"docs/book.css": nil,
	}
	for name, parts := range contains {
		if parts == nil && site[name] != nil {
			t.Errorf("%s is in the site", name)
		}
		for _, part := range parts {
			if !bytes.Contains(site[name], []byte(part)) {
				t.Errorf("%s has no %s:\n%s", name, part, site[name])
			}
		}
	}
	for name, data := range site {
		if bytes.Contains(data, []byte("<script>alert")) {
			t.Errorf("%s passes HTML of the Markdown on", name)
		}
	}
	if got := len(b.chapters[0].Pages); b.named != 3 || got != 2 || len(b.chapters[1].Pages) != 0 {
		t.Errorf("%d pages are named, %d in the first chapter", b.named, got)
	}
}

// A site is replaced whole, and nothing else is removed for one.
func TestRunReplacesASiteAlone(t *testing.T) {
	tree := fstest.MapFS{index: {Data: []byte("# Book\n")}}
	out := filepath.Join(t.TempDir(), "site")
	stale := filepath.Join(out, "stale.html")
	for range 2 {
		if err := run(tree, out, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(stale); err == nil {
			t.Error("a page of the earlier site is left")
		}
		if err := os.WriteFile(stale, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(out, searchFile)); err != nil {
		t.Fatal(err)
	}
	if err := run(tree, out, ""); err == nil || !strings.Contains(err.Error(), "not a site that may be replaced") {
		t.Errorf("a folder that is no site: %v", err)
	}
	if _, err := os.Stat(stale); err != nil {
		t.Error(err)
	}
}
