package openai

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	firstCell = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|")
	ticked    = regexp.MustCompile("`([^`]+)`")
)

// docs/reference/api.md names every field of a request that is read, and no other.
func TestDocumentsFields(t *testing.T) {
	raw, err := os.ReadFile("../../docs/reference/api.md")
	require.NoError(t, err)
	var documented, read []string
	for _, part := range [][2]string{{"## A request", "## Headers"}, {"## nvext", "## Answers"}} {
		_, text, _ := strings.Cut(string(raw), "\n"+part[0]+"\n")
		text, _, _ = strings.Cut(text, "\n"+part[1]+"\n")
		for _, row := range firstCell.FindAllStringSubmatch(text, -1) {
			for _, m := range ticked.FindAllStringSubmatch(row[1], -1) {
				documented = append(documented, m[1])
			}
		}
	}
	for _, set := range []*fieldSet{chatFields, completionFields, streamOptionFields, nvextFields, hintFields, constraintFields, targetFields, overrideFields} {
		for _, f := range set.fields {
			read = append(read, f.param)
			assert.True(t, slices.Contains(documented, f.param), "docs/reference/api.md lacks %s", f.param)
		}
	}
	for _, name := range documented {
		assert.True(t, slices.Contains(read, name), "docs/reference/api.md has %s, which is not read", name)
	}
}
