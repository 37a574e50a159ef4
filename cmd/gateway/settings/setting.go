package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Setting is one row of the table. Defaults and bounds are written as a user
// would write them, so that help, errors and parsing cannot disagree.
type Setting struct {
	// Name is the flag without its dashes and the YAML key, in kebab case:
	// "router-mode". A bool never starts with "no-": its negation is derived.
	Name string
	// Aliases are older names of the same setting. They work everywhere the
	// name does and may not contradict it on one level.
	Aliases []string
	// Kind says how text becomes a value.
	Kind Kind
	// Default is the value's text when nobody sets it; it must be valid. A bool
	// that defaults to true is shown in help as --no-NAME.
	Default string
	// Min and Max bound numbers, durations and bytes, inclusively; empty means
	// unbounded.
	Min, Max string
	// OneOf lists the only values a String may take; "-" and "_" are the same
	// letter in it. Nil means any value.
	OneOf []Choice
	// Help teaches: what the value does, its unit, and what it costs to go
	// either way. Whole sentences.
	Help string
	// Validate checks what kind and bounds cannot; nil means nothing more. The
	// value has the Go type that Kind documents. The error completes the
	// sentence "flag --name: …".
	Validate func(value any) error
	// Credentials says that the value is addresses, separated by commas, in which USER:PASSWORD may stand before an @:
	// [Resolved.Print] masks that.
	Credentials bool
}

// Choice is one value that a setting may take, with a line of help.
type Choice struct{ Name, Help string }

// Group is a heading in help and the settings under it, in reading order.
type Group struct {
	Title    string
	Settings []Setting
}

// WithDefault returns the group with another default for one of its settings,
// for a command that starts from elsewhere. It panics where the group has no
// such setting.
func (g Group) WithDefault(name, text string) Group {
	i := slices.IndexFunc(g.Settings, func(s Setting) bool { return s.Name == name })
	if i < 0 {
		panic(fmt.Sprintf("settings: no %q under %q", name, g.Title))
	}
	g.Settings = slices.Clone(g.Settings)
	g.Settings[i].Default = text
	return g
}

// Names returns the name and then the older names.
func (s *Setting) Names() []string { return append([]string{s.Name}, s.Aliases...) }

// EnvNames returns the environment variables of the setting in the order of
// their precedence. For router-mode: TANDEM_ROUTER_MODE, DYN_ROUTER_MODE.
// Older names follow, prefix by prefix.
func (s *Setting) EnvNames() []string {
	var names []string
	for _, prefix := range []string{tandemPrefix, dynPrefix} {
		for _, name := range s.Names() {
			names = append(names, prefix+envSuffix(name))
		}
	}
	return names
}

// Negated reports whether help shows the setting as --no-NAME: a switch that
// is on unless somebody turns it off.
func (s *Setting) Negated() bool { return s.Kind == Bool && s.Default == "true" }

// parse turns the text of a value into the value, checked.
func (s *Setting) parse(text string) (any, error) {
	if len(s.OneOf) > 0 {
		return s.choose(text)
	}
	v, err := s.Kind.parse(text)
	if err != nil {
		return nil, err
	}
	return v, s.check(v)
}

// check applies the bounds and Validate to a value of the setting's kind.
func (s *Setting) check(v any) error {
	if s.Min != "" && s.Kind.less(v, s.Kind.mustParse(s.Min)) {
		return fmt.Errorf("%s is below %s, the least it may be", s.Kind.format(v), s.Min)
	}
	if s.Max != "" && s.Kind.less(s.Kind.mustParse(s.Max), v) {
		return fmt.Errorf("%s is above %s, the most it may be", s.Kind.format(v), s.Max)
	}
	if s.Validate != nil {
		return s.Validate(v)
	}
	return nil
}

// choose finds text among OneOf, in the spelling that OneOf has.
func (s *Setting) choose(text string) (any, error) {
	dashed := strings.ReplaceAll(strings.TrimSpace(text), "_", "-")
	names := make([]string, len(s.OneOf))
	for i, c := range s.OneOf {
		if strings.ReplaceAll(c.Name, "_", "-") == dashed {
			return c.Name, nil
		}
		names[i] = c.Name
	}
	return nil, fmt.Errorf("%s is not one of %s", quote(text), strings.Join(names, ", "))
}

// malformed says what is wrong with the row itself, so that a bad table is
// found when the program starts and not when a user gets to it.
func (s *Setting) malformed() error {
	for _, name := range s.Names() {
		switch {
		case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.Contains(name, "--"):
			return fmt.Errorf("the name %q is not kebab case", name)
		case strings.HasPrefix(name, "no-"):
			return fmt.Errorf("the name %q would be read as a negation", name)
		case slices.Contains(reserved, name):
			return fmt.Errorf("the name %q is taken", name)
		}
	}
	if len(s.OneOf) > 0 && s.Kind != String {
		return errors.New("only a String has a OneOf")
	}
	for _, b := range []string{s.Min, s.Max} {
		if b == "" {
			continue
		}
		if !s.Kind.ordered() {
			return fmt.Errorf("a %s has no bounds", s.Kind)
		}
		if _, err := s.Kind.parse(b); err != nil {
			return fmt.Errorf("the bound: %w", err)
		}
	}
	if _, err := s.parse(s.Default); err != nil {
		return fmt.Errorf("the default: %w", err)
	}
	if s.Help == "" {
		return errors.New("no help")
	}
	return nil
}
