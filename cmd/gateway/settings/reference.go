package settings

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Reference writes the settings as Markdown, a table for each group. What shared
// has too, nil for nothing, is named and not explained again.
func (s *Set) Reference(b *bytes.Buffer, shared *Set) {
	var named []string
	for _, g := range s.Groups() {
		begun := false
		for _, row := range g.Rows {
			if shared != nil && shared.Has(row) {
				named = append(named, "`"+Flag(row, row.Name)+"`")
				continue
			}
			if !begun {
				fmt.Fprintf(b, "\n### %s\n\n| flag | default | what it does | change it when |\n|---|---|---|---|\n", g.Title)
				begun = true
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", Flag(row, row.Name), row.DefaultText(), cell(whole(row)), cell(row.When))
		}
	}
	if len(named) > 0 {
		fmt.Fprintf(b, "\nAs for `gateway serve`: %s.\n", strings.Join(named, ", "))
	}
}

// whole is all that the tags say of a setting, but for its default.
func whole(row *setting.Setting) string {
	text := row.Help
	for _, c := range row.OneOf {
		text += fmt.Sprintf(" `%s`: %s.", c.Name, strings.TrimSuffix(c.Help, "."))
	}
	text = strings.TrimSpace(text + " " + row.Range())
	for _, a := range row.Aliases {
		text += " Older name: `" + Flag(row, a) + "`."
	}
	return text
}

// cell is text inside a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
