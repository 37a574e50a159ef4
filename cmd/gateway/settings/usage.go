package settings

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tandem-pd/tandem/internal/setting"
)

// usageWidth is where help is wrapped, in columns.
const usageWidth = 100

// precedence is what help says of all settings.
const precedence = "Every flag is also a variable and a key of the YAML file that --config FILE names: --http-port is TANDEM_HTTP_PORT " +
	"(or DYN_HTTP_PORT) and http-port, --no-x is TANDEM_X=false and \"x: false\". A flag wins over TANDEM_, that over DYN_, that over the file."

// Usage writes the help of the settings named in first, by group; without names,
// that of all. command is the command's name, for the hint at the rest.
func (s *Set) Usage(w io.Writer, command string, first []string) error {
	b := bufio.NewWriter(w)
	for _, g := range s.groups() {
		if len(first) > 0 {
			g.rows = slices.DeleteFunc(g.rows, func(row *setting.Setting) bool { return !slices.Contains(first, row.Name) })
		}
		if len(g.rows) == 0 {
			continue
		}
		fmt.Fprintf(b, "%s\n", g.title)
		for _, row := range g.rows {
			usage(b, row, len(first) == 0)
		}
		fmt.Fprintln(b)
	}
	paragraph(b, "", 0, precedence)
	if len(first) > 0 && len(first) < len(s.rows) {
		fmt.Fprintf(b, "\nThese are %d of %d settings: `gateway %s --help-all` shows the rest.\n", len(first), len(s.rows), command)
	}
	return b.Flush()
}

// usage writes the help of one setting; whole includes what only few need.
func usage(b *bufio.Writer, row *setting.Setting, whole bool) {
	fmt.Fprintf(b, "  %s\n", strings.TrimSpace(flag(row, row.Name)+" "+row.Metavar()))
	paragraph(b, "", 6, row.Help)
	longest := 0
	for _, c := range row.OneOf {
		longest = max(longest, len(c.Name))
	}
	for _, c := range row.OneOf {
		paragraph(b, "      "+c.Name, 6+longest+2, c.Help)
	}
	paragraph(b, "", 6, facts(row))
	if whole && row.When != "" {
		paragraph(b, "", 6, "Change it when "+row.When+".")
	}
	if whole && len(row.Aliases) > 0 {
		var older []string
		for _, a := range row.Aliases {
			older = append(older, flag(row, a))
		}
		paragraph(b, "", 6, "Older names: "+strings.Join(older, ", ")+".")
	}
}

// facts is the line of help that the tags themselves give.
func facts(row *setting.Setting) string {
	return strings.TrimSpace("Default: " + row.DefaultText() + ". " + row.Range())
}

// flag is a name as help shows it on the command line.
func flag(row *setting.Setting, name string) string {
	if row.Negated() {
		return "--no-" + name
	}
	return "--" + name
}

// paragraph writes text wrapped at usageWidth, every line indented; term stands in the indent of the first.
func paragraph(b *bufio.Writer, term string, indent int, text string) {
	fmt.Fprintf(b, "%-*s", indent, term)
	column := indent
	for i, word := range strings.Fields(text) {
		width := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+width > usageWidth:
			fmt.Fprintf(b, "\n%*s", indent, "")
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += width
	}
	b.WriteByte('\n')
}

// Reference writes the settings as Markdown, a table for each group. What shared
// has too, nil for nothing, is named and not explained again.
func (s *Set) Reference(b *bytes.Buffer, shared *Set) {
	var named []string
	for _, g := range s.groups() {
		begun := false
		for _, row := range g.rows {
			if shared != nil && shared.byName[row.Name] != nil && shared.byName[row.Name].Help == row.Help {
				named = append(named, "`"+flag(row, row.Name)+"`")
				continue
			}
			if !begun {
				fmt.Fprintf(b, "\n### %s\n\n| flag | default | what it does | change it when |\n|---|---|---|---|\n", g.title)
				begun = true
			}
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", flag(row, row.Name), row.DefaultText(), cell(whole(row)), cell(row.When))
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
		text += " Older name: `" + flag(row, a) + "`."
	}
	return text
}

// cell is text inside a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
