package house

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	named   = regexp.MustCompile(`\b((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*)(…?)`)
	bench   = regexp.MustCompile(`-bench[= ]'?([A-Z][A-Za-z0-9|$]*)`)
	scheme  = regexp.MustCompile(`^[a-z][a-z0-9+.-]*:`)
	runbook = regexp.MustCompile(`runbook_url: https://github\.com/tandem-pd/tandem/blob/main/([^\s{]+)(?m:$)`)
)

// Links lead to what is there, those of alerts to their runbooks too, and the index of docs to each of its pages.
func TestLinksLeadSomewhere(t *testing.T) {
	tree := load(t)
	require.NotEmpty(t, documents(tree), "no document in the tree")
	index := documents(tree)["docs/README.md"]
	for name, text := range documents(tree) {
		page, ok := strings.CutPrefix(name, "docs/")
		index := index
		if runbook, under := strings.CutPrefix(page, "runbooks/"); under && runbook != "README.md" {
			page, index = runbook, documents(tree)["docs/runbooks/README.md"]
		}
		if ok && page != "README.md" && !strings.Contains(index, "("+page+")") {
			t.Errorf("docs/README.md has no line for %s", name)
		}
		for _, broken := range brokenLinks(tree, name, text) {
			t.Errorf("%s links to %s, which is not there", name, broken)
		}
	}
	runbooks := runbook.ReplaceAllString(tree.texts["deploy/grafana/alerts.yaml"], "]($1)")
	require.Contains(t, runbooks, "](docs/")
	assert.Empty(t, brokenLinks(tree, "README.md", runbooks), "runbooks of alerts")
}

// brokenLinks returns the relative links of a document that lead to no file, or to no heading in it.
func brokenLinks(tree *tree, name, text string) []string {
	var broken []string
	for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		if scheme.MatchString(m[1]) {
			continue
		}
		target, anchor, _ := strings.Cut(m[1], "#")
		file := name
		if target != "" {
			file = path.Join(path.Dir(name), target)
		}
		if !tree.paths[file] || anchor != "" && !slices.Contains(anchors(tree.texts[file]), anchor) {
			broken = append(broken, m[1])
		}
	}
	return broken
}

// anchors are the names by which a document's headings can be linked to.
func anchors(text string) []string {
	var found []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(m[1]) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				b.WriteRune(r)
			}
		}
		found = append(found, b.String())
	}
	return found
}

// A document that names a test names one that exists; "…" stands for the rest of a long name.
func TestNamedTestsExist(t *testing.T) {
	tree := load(t)
	var tests []string
	for _, s := range tree.sources {
		if s.test {
			tests = append(tests, functions(s)...)
		}
	}
	for name, text := range documents(tree) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			exists := func(test string) bool {
				return test == m[1] || m[2] != "" && strings.HasPrefix(test, m[1])
			}
			if !slices.ContainsFunc(tests, exists) {
				t.Errorf("%s names %s, and there is no such test", name, m[0])
			}
		}
		for _, m := range bench.FindAllStringSubmatch(text, -1) {
			for part := range strings.SplitSeq(m[1], "|") {
				matches := regexp.MustCompile("^Benchmark.*" + part).MatchString
				assert.True(t, slices.ContainsFunc(tests, matches), "%s names the benchmark %s, and there is none", name, part)
			}
		}
	}
}

// documents are the texts that end in .md.
func documents(tree *tree) map[string]string {
	found := maps.Clone(tree.texts)
	maps.DeleteFunc(found, func(name, _ string) bool { return path.Ext(name) != ".md" })
	return found
}
