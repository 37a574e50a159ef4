package settings

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Manual is what help says of a command before its settings, and which of them it shows first.
type Manual struct {
	// Name is the command's: "serve".
	Name string
	// Text is what it does, with examples; see [Prose].
	Text string
	// First are the settings that most people need; nil for all.
	First []string
}

// Narrowest and widest are the bounds of a line of help, in columns: beyond, people lose the line.
const (
	narrowest = 40
	widest    = 100
)

// Usage writes the help that was asked for, wrapped for a terminal of so many columns: of every setting, of one, of
// a group, or the first settings in a line or two and the names of all.
func (s *Set) Usage(w io.Writer, m Manual, asked Asked, columns int) error {
	h := &page{Writer: bufio.NewWriter(w), set: s, name: m.Name, width: min(max(columns, narrowest), widest)}
	switch {
	case asked.Topic != "":
		if err := h.topic(asked.Topic); err != nil {
			return err
		}
	case asked.All || len(m.First) == 0 || len(m.First) >= len(s.rows):
		h.text(m.Text)
		h.all()
		h.sources()
	default:
		h.text(m.Text)
		h.first(m.First)
		h.names()
		h.sources()
	}
	return h.Flush()
}

// page is a page of help in the making.
type page struct {
	*bufio.Writer
	set   *Set
	name  string
	width int
}

func (h *page) text(text string) {
	Prose(h, h.width, text)
	fmt.Fprintln(h)
}

// line begins a paragraph at the left.
func (h *page) line(format string, args ...any) {
	Paragraph(h, "", 0, h.width, fmt.Sprintf(format, args...))
}

// all explains every setting, by group.
func (h *page) all() {
	for _, g := range h.set.Groups() {
		h.group(g)
	}
}

func (h *page) group(g Group) {
	fmt.Fprintln(h, g.Title)
	for _, row := range g.Rows {
		h.whole(row)
	}
	fmt.Fprintln(h)
}

// termWidth is the column in which the short help of a flag begins.
const termWidth = 30

// first writes a sentence on each of the settings that most people need, by group.
func (h *page) first(names []string) {
	h.line("The %d that matter first:", len(names))
	for _, g := range h.set.Groups() {
		titled := false
		for _, row := range g.Rows {
			if !slices.Contains(names, row.Name) {
				continue
			}
			if !titled {
				fmt.Fprintf(h, "\n%s\n", g.Title)
				titled = true
			}
			h.short(row)
		}
	}
	fmt.Fprintln(h)
}

// short writes a sentence on a setting, and its default if it has one.
func (h *page) short(row *setting.Setting) {
	text := Short(row)
	if row.Default != "" && !row.Switch() {
		text += " Default: " + row.DefaultText() + "."
	}
	Paragraph(h, "  "+strings.TrimSpace(Flag(row, row.Name)+" "+row.Metavar()), h.indent(termWidth), h.width, text)
}

// indent is where a second column begins: below its term where the page is too narrow for two.
func (h *page) indent(column int) int {
	if h.width < 2*termWidth {
		return 6
	}
	return column
}

// Short is the first sentence of a setting's help. That of a switch says what its flag does: what is on by default is
// switched off by it.
func Short(row *setting.Setting) string {
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

// names lists every flag of the command, by group, and how to ask for more.
func (h *page) names() {
	groups := h.set.Groups()
	longest := 0
	for _, g := range groups {
		longest = max(longest, len(g.Title))
	}
	h.line("All %d, by group:", len(h.set.rows))
	fmt.Fprintln(h)
	for _, g := range groups {
		var flags []string
		for _, row := range g.Rows {
			flags = append(flags, strings.TrimPrefix(Flag(row, row.Name), "--"))
		}
		Paragraph(h, "  "+g.Title, h.indent(2+longest+2), h.width, strings.Join(flags, " "))
	}
	fmt.Fprintln(h)
	example := groups[0].Rows[0].Name
	Paragraph(h, "  --help FLAG", h.indent(18), h.width, fmt.Sprintf("explains one of them: gateway %s --help %s", h.name, example))
	Paragraph(h, "  --help GROUP", h.indent(18), h.width, fmt.Sprintf("explains those of a group: gateway %s --help %s", h.name, h.example(groups)))
	Paragraph(h, "  --help WORD", h.indent(18), h.width, "lists those that have it in their name")
	Paragraph(h, "  --help-all", h.indent(18), h.width, "explains all of them")
	fmt.Fprintln(h)
}

// example is a group to name in an example: the second, since the first holds the flag.
func (h *page) example(groups []Group) string { return slug(groups[min(1, len(groups)-1)].Title) }

// slug is a heading as it is written on a command line.
func slug(title string) string { return strings.ReplaceAll(strings.ToLower(title), " ", "-") }

// sources says where else values may come from.
func (h *page) sources() {
	h.line("Every flag is also a variable and a key of the YAML file that --config FILE names: --http-port is TANDEM_HTTP_PORT " +
		"(or DYN_HTTP_PORT) and http-port, --no-x is TANDEM_X=false and \"x: false\". A flag wins over TANDEM_, that over DYN_, that over the file.")
}

// topic explains a setting, or the settings of a group, or lists those with the word in their name.
func (h *page) topic(topic string) error {
	name := slug(kebab(strings.TrimLeft(topic, "-")))
	row := h.set.byName[name]
	if rest, ok := strings.CutPrefix(name, "no-"); ok && row == nil {
		row = h.set.byName[rest]
	}
	if row != nil {
		h.whole(row)
		variable := envSuffix(row.Name)
		Paragraph(h, "", 6, h.width, fmt.Sprintf("Also: the variable %s%s or %s%s, and the key %s of a --config file.", tandemPrefix, variable, dynPrefix, variable, row.Name))
		h.neighbours(row)
		return nil
	}
	var found []*setting.Setting
	for _, g := range h.set.Groups() {
		if slug(g.Title) == name {
			h.group(g)
			return nil
		}
		for _, row := range g.Rows {
			if name != "" && strings.Contains(row.Name, name) {
				found = append(found, row)
			}
		}
	}
	if len(found) == 0 {
		return &setting.Error{Name: "flag --help " + setting.Clip(topic), Err: unknown(name, h.set.names(), func(n string) string { return "--help " + n })}
	}
	h.line("No setting of gateway %s is called %s. These have it in their name:", h.name, name)
	fmt.Fprintln(h)
	for _, row := range found {
		h.short(row)
	}
	return nil
}

// neighbours names the other settings of a setting's group.
func (h *page) neighbours(row *setting.Setting) {
	for _, g := range h.set.Groups() {
		if g.Title != row.Group || len(g.Rows) < 2 {
			continue
		}
		var others []string
		for _, other := range g.Rows {
			if other.Name != row.Name {
				others = append(others, Flag(other, other.Name))
			}
		}
		fmt.Fprintln(h)
		h.line("Others of the group %s: %s", g.Title, strings.Join(others, ", "))
	}
}

// whole writes all that is known of one setting.
func (h *page) whole(row *setting.Setting) {
	fmt.Fprintf(h, "  %s\n", strings.TrimSpace(Flag(row, row.Name)+" "+row.Metavar()))
	say := func(text string) { Paragraph(h, "", 6, h.width, text) }
	say(row.Help)
	longest := 0
	for _, c := range row.OneOf {
		longest = max(longest, len(c.Name))
	}
	for _, c := range row.OneOf {
		Paragraph(h, "      "+c.Name, 6+longest+2, h.width, c.Help)
	}
	say("Default: " + defaultAndRange(row) + ".")
	if len(row.Aliases) > 0 {
		var older []string
		for _, a := range row.Aliases {
			older = append(older, Flag(row, a))
		}
		say("Older names: " + strings.Join(older, ", ") + ".")
	}
}

// Flag is a name as help shows it on the command line: --no-NAME of a switch that is on by default.
func Flag(row *setting.Setting, name string) string {
	if row.Negated() {
		return "--no-" + name
	}
	return "--" + name
}
