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
				fmt.Fprintf(b, "\n### %s\n\n| flag | default | what it does |\n|---|---|---|\n", g.Title)
				begun = true
			}
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", Flag(row, row.Name), defaultAndRange(row), cell(whole(row)))
		}
	}
	if len(named) > 0 {
		fmt.Fprintf(b, "\nAs for `gateway serve`: %s.\n", strings.Join(named, ", "))
	}
}

// whole is a setting's help with its choices and older names.
func whole(row *setting.Setting) string {
	text := row.Help
	for _, c := range row.OneOf {
		text += fmt.Sprintf(" `%s`: %s.", c.Name, strings.TrimSuffix(c.Help, "."))
	}
	for _, a := range row.Aliases {
		text += " Older name: `" + Flag(row, a) + "`."
	}
	return text
}

// defaultAndRange is "8000 (0..65535)".
func defaultAndRange(row *setting.Setting) string {
	if r := row.Range(); r != "" {
		return row.DefaultText() + " (" + r + ")"
	}
	return row.DefaultText()
}

// cell is text inside a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
