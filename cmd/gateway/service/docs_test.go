package service

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the answers into docs/services.md; read every changed line")

// An example is a request in a fence of its own, and the answer in the next.
var example = regexp.MustCompile("(?s)```http\n([A-Z]+) (\\S+)\n(.*?)```\n(?:\n```json\n([0-9]{3})\n(.*?)```\n)?")

// Every example of docs/services.md, replayed in order, is answered as documented.
func TestDocumentedExamples(t *testing.T) {
	const path = "../../../docs/services.md"
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	text := string(raw)
	at := strings.Index(text, "## gateway select")
	seen := map[string]bool{}
	replay := func(part string, s *Server) string {
		return example.ReplaceAllStringFunc(part, func(whole string) string {
			m := example.FindStringSubmatch(whole)
			res := ask(t, s, m[1], m[2], m[3])
			got := fmt.Sprintf("%d\n%s", res.Code, res.Body.String())
			if want := m[4] + "\n" + m[5]; got != want && !*update {
				t.Errorf("%s %s is answered\n%s\nand documented as\n%s", m[1], m[2], got, want)
			}
			seen[m[1]+" "+regexp.MustCompile(`/(r1|w1)\b`).ReplaceAllString(m[2], "/{id}")] = true
			return "```http\n" + m[1] + " " + m[2] + "\n" + m[3] + "```\n\n```json\n" + got + "```\n"
		})
	}
	index, sel := newIndex(t, Config{}), newSelect(t, SelectConfig{})
	rewritten := replay(text[:at], index) + replay(text[at:], sel)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(rewritten), 0o644))
	}
	for _, pattern := range slices.Concat(index.patterns, sel.patterns) {
		assert.True(t, seen[pattern], "docs/services.md has no example of %s", pattern)
	}
}
