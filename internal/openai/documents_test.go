package openai

import (
	"os"
	"regexp"
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
	for _, set := range []*fieldSet{fieldsOf[Chat], fieldsOf[Completions], streamOptionFields, nvextFields, hintFields, constraintFields,
		targetFields, overrideFields} {
		for _, f := range set.fields {
			read = append(read, f.param)
		}
	}
	assert.Subset(t, documented, read, "docs/reference/api.md lacks some")
	assert.Subset(t, read, documented, "docs/reference/api.md has some that are not read")
}
