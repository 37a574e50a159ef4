package settings

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// usageWidth is where help is wrapped, in columns.
const usageWidth = 100

// Usage writes the help of every setting: what it does, its values, default,
// bounds and other names, under the headings of the groups, wrapped at 100
// columns. The command writes its own synopsis before it.
func (s *Set) Usage(w io.Writer) error {
	b := bufio.NewWriter(w)
	paragraph(b, "", 0, "Every setting is a flag, an environment variable and a key of a YAML file. "+
		"The flag wins over the TANDEM_ variable, that over the DYN_ variable, that over the file, that over the default.")
	fmt.Fprintf(b, "\n  --%s FILE\n", configName)
	paragraph(b, "", 6, "YAML file to read settings from: a line for each, as \"router-mode: kv\". The key of --no-x is x, as \"x: false\". "+
		"Environment: "+tandemPrefix+envSuffix(configName)+".")
	for _, g := range s.groups {
		fmt.Fprintf(b, "\n%s\n", g.Title)
		for i := range g.Settings {
			g.Settings[i].usage(b)
		}
	}
	return b.Flush()
}

// usage writes the help of one setting.
func (s *Setting) usage(b *bufio.Writer) {
	fmt.Fprintf(b, "\n  %s\n", strings.TrimSpace(s.flag(s.Name)+" "+s.metavar()))
	paragraph(b, "", 6, s.Help)
	longest := 0
	for _, c := range s.OneOf {
		longest = max(longest, len(c.Name))
	}
	for _, c := range s.OneOf {
		paragraph(b, "      "+c.Name, 6+longest+2, c.Help)
	}
	paragraph(b, "", 6, s.facts())
	if len(s.Aliases) > 0 {
		var older []string
		for _, a := range s.Aliases {
			older = append(older, s.flag(a), s.variable(tandemPrefix, a), s.variable(dynPrefix, a))
		}
		paragraph(b, "", 6, "Older names: "+strings.Join(older, ", ")+".")
	}
}

// facts is the line of help that the row itself gives.
func (s *Setting) facts() string {
	def := s.Kind.format(s.Kind.mustParse(s.Default))
	switch {
	case s.Kind == Bool && s.Negated():
		def = "on"
	case s.Kind == Bool:
		def = "off"
	case s.Default == "":
		def = "none"
	}
	facts := "Default: " + def + "."
	switch {
	case s.Min != "" && s.Max != "":
		facts += " From " + s.Min + " to " + s.Max + "."
	case s.Min != "":
		facts += " At least " + s.Min + "."
	case s.Max != "":
		facts += " At most " + s.Max + "."
	}
	return facts + " Environment: " + s.variable(tandemPrefix, s.Name) + ", " + s.variable(dynPrefix, s.Name) + "."
}

// flag is a name as help shows it on the command line.
func (s *Setting) flag(name string) string {
	if s.Negated() {
		return "--no-" + name
	}
	return "--" + name
}

// variable is the environment's way to say what flag says.
func (s *Setting) variable(prefix, name string) string {
	v := prefix + envSuffix(name)
	if s.Kind != Bool {
		return v
	}
	return fmt.Sprintf("%s=%t", v, !s.Negated())
}

// metavar stands for the value behind the flag.
func (s *Setting) metavar() string {
	if len(s.OneOf) > 0 {
		return "NAME"
	}
	return kinds[s.Kind].metavar
}

// paragraph writes text wrapped at usageWidth, every line indented; term stands
// in the indent of the first.
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
