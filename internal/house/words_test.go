package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
)

// barred are words that people had to read twice, each with what to write instead. They are matched as whole words, in
// any case. docs/glossary.md has the words that the project uses in a sense of its own.
var barred = []struct{ word, instead string }{
	{`told|tells? of|telling of`, "reported, published, answered, configured"},
	{`doubt(s|ed|ing|ful)?`, "stale, mark stale"},
	{`foresee(s|n|ing)?|foresaw|foresight`, "predict"},
	{`retell(s|ing|er)?|retold`, "re-announce"},
	{`heal(s|ed|ing)?`, "repair, recover"},
	{`hopeless`, "maxRepairAttempts, given up"},
	{`hushed|fallen silent|falls? silent|fell silent`, "silent, stops responding"},
	{`take ?leave|takes leave`, "acquire, permit"},
	{`seats?`, "slot"},
	{`blind`, "ignoresOverlap, unaware of"},
	{`p ?end|d ?end`, "prefillDone, decodeDone"},
	{`whoever|whomever|whosoever`, "the caller, the client, waiters: name it"},
	{`nobody|no one`, "no worker, no request, no client: name it"},
	{`anew`, "again, from the start"},
	{`beside`, "next to, in addition to"},
	{`in vain`, "without success, failed"},
	{`be had|is had|are had|was had|were had|is to be had`, "is available, is supported"},
	{`lest`, "so that … not"},
	{`by way`, "by method"},
	{`makes? place`, "is evicted for, frees a slot for"},
	{`foremost|thereof|therein|whence|hence|thence|hither|thither`, "plain words"},
}

var barredWords = func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, b := range barred {
		all = append(all, regexp.MustCompile(`(?i)\b(`+b.word+`)\b`))
	}
	return all
}()

// anyBarred finds that a text has one of them, at a twentieth of the cost.
var anyBarred = regexp.MustCompile(`(?i)\b(` + strings.Join(func() (all []string) {
	for _, b := range barred {
		all = append(all, b.word)
	}
	return all
}(), "|") + `)\b`)

// barredIn returns the barred words of a text, each with what to write instead.
func barredIn(text string) []string {
	var found []string
	if !anyBarred.MatchString(text) {
		return nil
	}
	for i, re := range barredWords {
		if m := re.FindString(text); m != "" {
			found = append(found, fmt.Sprintf("%q: write %s", m, barred[i].instead))
		}
	}
	return found
}

// span is a name of the code in a document.
var span = regexp.MustCompile("`[^`]*`")

// onTheWire are names that clients read and that stay as they are, though a
// barred word is in them.
var onTheWire = []string{`json:"healed"`}

// Documents use plain words: README, docs and the pages next to the code.
func TestDocumentsUsePlainWords(t *testing.T) {
	for name, text := range documents(load(t)) {
		fenced := false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			}
			if fenced { // commands and what they print: the code's own words
				continue
			}
			for _, found := range barredIn(span.ReplaceAllString(line, "`")) {
				t.Errorf("%s:%d has %s", name, i+1, found)
			}
		}
	}
}

// So do the texts of the code that people read: strings (help, log messages,
// errors, metric help), exported names and comments.
func TestCodeUsesPlainWords(t *testing.T) {
	for _, s := range load(t).sources {
		if !s.code() {
			continue
		}
		for _, text := range readable(s) {
			for _, found := range barredIn(text.words) {
				t.Errorf("%s: %s has %s", s.at(text.pos), text.kind, found)
			}
		}
	}
}

// wording is a text in the code that people read.
type wording struct {
	kind, words string
	pos         token.Pos
}

// readable returns a file's strings, exported names and comments.
func readable(s *source) []wording {
	var all []wording
	add := func(kind, words string, pos token.Pos) { all = append(all, wording{kind, words, pos}) }
	for _, group := range s.ast.Comments {
		add("the comment", strings.Join(strings.Fields(group.Text()), " "), group.Pos())
	}
	name := func(id *ast.Ident) {
		if id.IsExported() {
			add("the name "+id.Name, words(id.Name), id.Pos())
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind == token.STRING && !slices.Contains(onTheWire, strings.Trim(n.Value, "`")) {
				add("the string", n.Value, n.Pos())
			}
		case *ast.FuncDecl:
			name(n.Name)
		case *ast.GenDecl:
			for _, spec := range n.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					name(spec.Name)
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						name(id)
					}
				}
			}
		case *ast.Field:
			for _, id := range n.Names {
				name(id)
			}
		}
		return true
	})
	return all
}

// words splits a name where a new word begins: takeLeave is "take Leave".
func words(name string) string {
	var b strings.Builder
	var last rune
	for _, r := range name {
		if unicode.IsUpper(r) && unicode.IsLower(last) || r == '_' {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
		last = r
	}
	return b.String()
}

func TestBarredWordsAreFound(t *testing.T) {
	tests := []struct{ text, want string }{
		{"package p\n// F is what it was told.\nfunc F() {}", "the comment"},
		{"package p\n// TakeLeave acquires.\nfunc TakeLeave() {}", "the comment, the name TakeLeave"},
		{"package p\ntype T struct{ Seats int `help:\"in vain\"` }", "the name Seats, the string"},
		{`package p; var x = "Nobody waits"`, "the string"},
		{"package p\n// f is reported.\nfunc f() { told := 1; _ = told }", ""},
		{`package p; var x = "beseated, besides, harvest"`, ""},
	}
	for _, tt := range tests {
		var kinds []string
		for _, text := range readable(mustParse(t, "a.go", tt.text)) {
			if len(barredIn(text.words)) > 0 && !slices.Contains(kinds, text.kind) {
				kinds = append(kinds, text.kind)
			}
		}
		assert.Equal(t, tt.want, strings.Join(kinds, ", "), "%q", tt.text)
	}
}
