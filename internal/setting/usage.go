package setting

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/terminal"
)

// Manual is what help shows of a command before its settings, and which of them it shows first.
type Manual struct {
	// Name is the command's: "serve".
	Name string
	// Text is what it does, with examples; see [terminal.Prose].
	Text string
	// First are the settings that most people need; nil for all.
	First []string
}

// The bounds of a line of help, in columns, and the column in which the short help of a flag begins.
const (
	narrowest = 40
	widest    = 100
	termWidth = 30
)

// Usage writes the help that was requested, wrapped for a terminal of so many columns: of every setting, of one, of a
// group, or the first settings in a line or two and the names of all.
func (s *Set) Usage(w io.Writer, m Manual, asked Asked, columns int) error {
	h := &page{Writer: bufio.NewWriter(w), set: s, name: m.Name, width: min(max(columns, narrowest), widest)}
	if asked.Topic != "" {
		if err := h.topic(asked.Topic); err != nil {
			return err
		}
		return h.Flush()
	}
	terminal.Prose(h, h.width, m.Text)
	fmt.Fprintln(h)
	if asked.All || len(m.First) == 0 || len(m.First) >= len(s.rows) {
		for _, g := range s.Groups() {
			h.group(g)
		}
	} else {
		h.line("The %d that matter first:", len(m.First))
		h.first(m.First)
		h.names()
	}
	h.line("Every flag is also a variable and a key of the YAML file that --config FILE names: --http-port is TANDEM_HTTP_PORT " +
		"(or DYN_HTTP_PORT) and http-port, --no-x is TANDEM_X=false and \"x: false\". A flag wins over TANDEM_, that over DYN_, that over the file.")
	return h.Flush()
}

// page is a page of help in the making.
type page struct {
	*bufio.Writer
	set   *Set
	name  string
	width int
}

// line writes a paragraph that begins at the left.
func (h *page) line(format string, args ...any) { h.column("", 0, fmt.Sprintf(format, args...)) }

// column writes a paragraph in the second column, below its term where the page is too narrow for two.
func (h *page) column(term string, column int, text string) {
	if term != "" && h.width < 2*termWidth {
		column = min(column, 6)
	}
	terminal.Paragraph(h, term, column, h.width, text)
}

func (h *page) group(g Group) {
	fmt.Fprintln(h, g.Title)
	for _, row := range g.Rows {
		h.whole(row)
	}
	fmt.Fprintln(h)
}

// first writes a sentence on each of the settings that most people need, by group.
func (h *page) first(names []string) {
	for _, g := range h.set.Groups() {
		rows := slices.DeleteFunc(slices.Clone(g.Rows), func(row *Setting) bool { return !slices.Contains(names, row.Name) })
		if len(rows) > 0 {
			fmt.Fprintf(h, "\n%s\n", g.Title)
			h.short(rows)
		}
	}
	fmt.Fprintln(h)
}

// short writes a sentence on each setting, and its default if it has one.
func (h *page) short(rows []*Setting) {
	for _, row := range rows {
		text := firstSentence(row)
		if row.Default != "" && !row.Switch() {
			text += " Default: " + row.DefaultText() + "."
		}
		h.column("  "+term(row), termWidth, text)
	}
}

// firstSentence returns the first sentence of a setting's help. For a switch that is on by default it is what the flag
// does: switch that off.
func firstSentence(row *Setting) string {
	text := row.Help
	if first, _, more := strings.Cut(text, ". "); more {
		text = first + "."
	}
	on, ok := strings.CutPrefix(text, "On: ")
	switch {
	case !row.Switch() || !ok:
		return text
	case row.Negated():
		return "Switches off what is on by default: " + on
	}
	return strings.ToUpper(on[:1]) + on[1:]
}

// names lists every flag of the command, by group, and the ways to get more help.
func (h *page) names() {
	groups := h.set.Groups()
	longest := 0
	for _, g := range groups {
		longest = max(longest, len(g.Title))
	}
	h.line("All %d, by group:", len(h.set.rows))
	fmt.Fprintln(h)
	for _, g := range groups {
		h.column("  "+g.Title, 2+longest+2, strings.ReplaceAll(flags(g.Rows, " "), "--", ""))
	}
	fmt.Fprintln(h)
	flag, group := groups[0].Rows[0].Name, slug(groups[min(1, len(groups)-1)].Title) // the first group holds the flag
	h.column("  --help FLAG", 18, fmt.Sprintf("explains one of them: gateway %s --help %s", h.name, flag))
	h.column("  --help GROUP", 18, fmt.Sprintf("explains those of a group: gateway %s --help %s", h.name, group))
	h.column("  --help WORD", 18, "lists those that have it in their name")
	h.column("  --help-all", 18, "explains all of them")
	fmt.Fprintln(h)
}

// slug is a heading as it is written on a command line.
func slug(title string) string { return strings.ReplaceAll(strings.ToLower(title), " ", "-") }

// topic explains a setting, or the settings of a group, or lists those with the word in their name.
func (h *page) topic(topic string) error {
	name := slug(kebab(strings.TrimLeft(topic, "-")))
	row := h.set.byName[name]
	if rest, ok := strings.CutPrefix(name, "no-"); ok && row == nil {
		row = h.set.byName[rest]
	}
	var found []*Setting
	for _, g := range h.set.Groups() {
		if row == nil && slug(g.Title) == name {
			h.group(g)
			return nil
		}
		for _, r := range g.Rows {
			if strings.Contains(r.Name, name) {
				found = append(found, r)
			}
		}
	}
	switch {
	case row != nil:
		h.whole(row)
		variable := envSuffix(row.Name)
		h.column("", 6, fmt.Sprintf("Also: the variable %s%s or %s%s, and the key %s of a --config file.", tandemPrefix, variable,
			dynPrefix, variable, row.Name))
		h.neighbours(row)
	case name == "" || len(found) == 0:
		return &Error{Name: "flag --help " + Clip(topic),
			Err: unknown(name, h.set.names(), func(n string) string { return "--help " + n })}
	default:
		h.line("No setting of gateway %s is called %s. These have it in their name:", h.name, name)
		fmt.Fprintln(h)
		h.short(found)
	}
	return nil
}

// neighbours names the other settings of a setting's group.
func (h *page) neighbours(row *Setting) {
	for _, g := range h.set.Groups() {
		others := slices.DeleteFunc(slices.Clone(g.Rows), func(other *Setting) bool { return other.Name == row.Name })
		if g.Title == row.Group && len(others) > 0 {
			fmt.Fprintln(h)
			h.line("Others of the group %s: %s", g.Title, flags(others, ", "))
		}
	}
}

// whole writes everything about one setting.
func (h *page) whole(row *Setting) {
	fmt.Fprintf(h, "  %s\n", term(row))
	h.column("", 6, row.Help)
	longest := 0
	for _, c := range row.OneOf {
		longest = max(longest, len(c.Name))
	}
	for _, c := range row.OneOf {
		terminal.Paragraph(h, "      "+c.Name, 6+longest+2, h.width, c.Help)
	}
	h.column("", 6, "Default: "+DefaultAndRange(row)+".")
	if len(row.Aliases) > 0 {
		var older []string
		for _, a := range row.Aliases {
			older = append(older, Flag(row, a))
		}
		h.column("", 6, "Older names: "+strings.Join(older, ", ")+".")
	}
}

// DefaultAndRange returns "8000 (0..65535)".
func DefaultAndRange(row *Setting) string {
	if r := row.Range(); r != "" {
		return row.DefaultText() + " (" + r + ")"
	}
	return row.DefaultText()
}

// Flag returns a name as help shows it on the command line: --no-NAME of a switch that is on by default.
func Flag(row *Setting, name string) string {
	if row.Negated() {
		return "--no-" + name
	}
	return "--" + name
}

// term is a flag with what stands for its value.
func term(row *Setting) string {
	return strings.TrimSpace(Flag(row, row.Name) + " " + row.Metavar())
}

func flags(rows []*Setting, separator string) string {
	var all []string
	for _, row := range rows {
		all = append(all, Flag(row, row.Name))
	}
	return strings.Join(all, separator)
}
