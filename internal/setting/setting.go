// Package setting reads the tags of a Config's fields: the name by which a user sets a field, its default, range and
// help. What is true of one field alone stands there, once, and is read from there by all that checks or documents it.
//
// A [Document] is a YAML file, read strictly: every mistake is reported with its file, line and field, all of them at
// once, and with the nearest name where a name is unknown.
//
//	type Config struct {
//		// Timeout bounds a prefill; 0 is automatic.
//		Timeout time.Duration `flag:"prefill-timeout" default:"0s" range:"0s.." help:"Limit of one prefill. 0 is automatic."`
//	}
//
// The tags of a field:
//
//	flag     its name in kebab case, then older names: "worker-url,static-endpoint".
//	default  its value when nothing sets it, written as a user writes it.
//	range    least and greatest value: "1..64", "0..", "0|100ms..", which is 0 or from 100ms.
//	oneof    the only values: "ttl=dropped by age|lru=dropped by use"; "-" asks the
//	         Config, see [Chooser]. On a bool the first value is false, the second true.
//	form     what text must look like: see forms.go.
//	unit     "bytes" of an int or int64; "s" of a time.Duration that is given in seconds.
//	sep      "space" where the items of a list are separated by blanks, not by commas.
//	mask     "user" where addresses may have USER:PASSWORD@, which is not printed.
//	help     one or two short sentences: what it does, its unit, what 0 or empty means.
//	group    the heading it stands under. On a struct: that of all its fields.
//
// A field with a default and no flag is not a user's to set; [Default], [Fill] and [Check] use it. A field with a
// flag and no help borrows the other tags from the field of that name in another command: see [NewSet].
// Mistakes in tags panic at any use of the Config.
//
// Each setting is a flag (--router-mode), two environment variables (TANDEM_ROUTER_MODE, and DYN_ROUTER_MODE, the
// name that deployments of Dynamo already use) and a YAML key (router-mode or router_mode). The first of these wins:
//
//	flag > TANDEM_ variable > DYN_ variable > file named by --config > default
//
// A [Set] holds the settings of one command. It resolves arguments, an environment and a file into its struct and a
// [Resolved], which prints every value with where it came from, in a form that --config takes back.
//
// A value is checked even where another one overrides it, so that a mistake shows on the day it is made; the one
// exception is a DYN_ variable that is overridden, which may have been meant for another program. Unknown names are
// refused with the nearest known one, except DYN_ variables, which are not all ours.
//
// Flags are not read by a library: pflag and kong stop at the first mistake and keep no source of a value. kong also
// needs a tag on each field of a Config that is no setting.
package setting

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Setting is a field that a user can set.
type Setting struct {
	Name     string
	Aliases  []string // older names, which mean the same
	kind     *kind
	Default  string // as a user writes it
	Min, Max string // empty: unbounded
	OneOf    []Choice
	Help     string
	Group    string
	Masked   bool // addresses that may hold a password

	inner  bool // not a user's to set
	orZero bool // 0 is allowed below Min
	form   string
	index  []int // of the field, from the outermost struct
}

// Choice is one value that a setting may take, with a line of help.
type Choice struct{ Name, Help string }

// Chooser is a Config whose values to choose from are registered elsewhere, such
// as routing policies. Choices returns those of a flag.
type Chooser interface{ Choices(flag string) []Choice }

// Of returns the settings of a Config, a struct or a pointer to one, in the order
// of its fields. Fields that are structs without a flag are entered.
func Of(config any) []*Setting {
	return slices.DeleteFunc(all(config), func(s *Setting) bool { return s.inner })
}

// all are the settings of a Config, with those that are not a user's.
func all(config any) []*Setting {
	t := reflect.TypeOf(config)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return appendOf(nil, t, nil, "")
}

func appendOf(found []*Setting, t reflect.Type, index []int, group string) []*Setting {
	chooser, _ := reflect.Zero(t).Interface().(Chooser)
	for i := range t.NumField() {
		field := t.Field(i)
		at := append(slices.Clone(index), i)
		under := group
		if own := field.Tag.Get("group"); own != "" {
			under = own
		}
		_, inner := field.Tag.Lookup("default")
		names, named := field.Tag.Lookup("flag")
		switch {
		case named || inner:
			if !named {
				names = t.String() + "." + field.Name
			}
			s, err := read(field, names, chooser)
			if err == nil && named {
				err = s.nameProblem()
			}
			if err != nil {
				panic(fmt.Sprintf("setting: %s.%s: %v", t, field.Name, err))
			}
			s.inner = !named
			s.index, s.Group = at, under
			found = append(found, s)
		case field.Type.Kind() == reflect.Struct && (field.IsExported() || field.Anonymous):
			found = appendOf(found, field.Type, at, under)
		}
	}
	return found
}

func read(field reflect.StructField, names string, chooser Chooser) (*Setting, error) {
	tag := field.Tag
	all := strings.Split(names, ",")
	s := &Setting{
		Name: all[0], Aliases: all[1:], Default: tag.Get("default"), Help: tag.Get("help"),
		Masked: tag.Get("mask") != "", form: tag.Get("form"),
	}
	var err error
	if s.kind, err = fieldKind(field.Type, tag.Get("unit"), tag.Get("sep")); err != nil {
		return nil, err
	}
	if err := s.readRange(tag.Get("range")); err != nil {
		return nil, err
	}
	if err := s.readChoices(tag.Get("oneof"), chooser); err != nil {
		return nil, err
	}
	if _, named := tag.Lookup("flag"); named && s.Borrowed() {
		return s, nil
	}
	if _, err := s.Parse(s.Default); err != nil {
		return nil, fmt.Errorf("the default: %w", err)
	}
	return s, nil
}

func (s *Setting) nameProblem() error {
	for _, name := range s.Names() {
		switch {
		case name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.Contains(name, "--"):
			return fmt.Errorf("the name %q is not kebab case", name)
		case strings.HasPrefix(name, "no-"):
			return fmt.Errorf("the name %q would be read as a negation", name)
		case name == "config" || strings.HasPrefix(name, "help"):
			return fmt.Errorf("the name %q is taken", name)
		}
	}
	return nil
}

func (s *Setting) readRange(text string) error {
	if text == "" {
		return nil
	}
	if s.kind.less == nil {
		return fmt.Errorf("a %s has no range", s.kind.name)
	}
	rest, orZero := strings.CutPrefix(text, "0|")
	least, most, ok := strings.Cut(rest, "..")
	if !ok {
		return fmt.Errorf("the range %q is not LEAST..MOST", text)
	}
	s.Min, s.Max, s.orZero = least, most, orZero
	for _, bound := range []string{least, most} {
		if bound == "" {
			continue
		}
		if _, err := s.kind.read(bound); err != nil {
			return fmt.Errorf("the range: %w", err)
		}
	}
	return nil
}

func (s *Setting) readChoices(text string, chooser Chooser) error {
	switch {
	case text == "":
		return nil
	case s.kind != kindString && s.kind != kindBool:
		return errors.New("only a string or a bool has a oneof")
	case text == "-" && chooser == nil:
		return errors.New("oneof asks the Config, which has no Choices")
	case text == "-":
		s.OneOf = chooser.Choices(s.Name)
	default:
		for item := range strings.SplitSeq(text, "|") {
			name, help, _ := strings.Cut(item, "=")
			s.OneOf = append(s.OneOf, Choice{name, help})
		}
	}
	if s.kind == kindBool && len(s.OneOf) != 2 {
		return errors.New("a bool is one of two")
	}
	return nil
}

// Borrowed reports whether the other tags are those of another field of this name.
func (s *Setting) Borrowed() bool { return s.Help == "" && !s.inner }

// Borrow returns s with the tags of from.
func (s *Setting) Borrow(from *Setting) (*Setting, error) {
	if s.kind != from.kind {
		return nil, fmt.Errorf("%s is a %s here and a %s there", s.Name, s.kind.name, from.kind.name)
	}
	whole := *from
	whole.index = s.index
	if s.Group != "" {
		whole.Group = s.Group
	}
	return &whole, nil
}

// Names returns the name and then the older names.
func (s *Setting) Names() []string { return append([]string{s.Name}, s.Aliases...) }

// Switch reports whether the setting is on or off, and its flag takes no value.
func (s *Setting) Switch() bool { return s.kind == kindBool && s.OneOf == nil }

// Negated reports whether the flag to show is --no-NAME: a switch that is on by default.
func (s *Setting) Negated() bool { return s.Switch() && s.Default == "true" }

// Several reports whether the value has items, which a YAML sequence can hold and repeated flags add to.
func (s *Setting) Several() bool { return s.kind == kindList || s.kind == kindWords }

// Expected completes the sentence "… takes …".
func (s *Setting) Expected() string { return s.kind.expected }

// Metavar stands for the value in help; empty for a switch.
func (s *Setting) Metavar() string {
	if s.OneOf != nil {
		return "NAME"
	}
	return s.kind.metavar
}

// DefaultText is the default as help shows it.
func (s *Setting) DefaultText() string {
	switch {
	case s.Switch() && s.Default == "true":
		return "on"
	case s.Switch():
		return "off"
	case s.Default == "":
		return "none"
	case s.OneOf != nil:
		return s.Default
	}
	return s.kind.format(s.kind.mustRead(s.Default))
}

// Range is which values are allowed, as "1..64" or "≥ 1s"; empty where all are.
func (s *Setting) Range() string {
	text := s.Min + ".." + s.Max
	switch {
	case s.Min == "" && s.Max == "":
		return ""
	case s.Max == "":
		text = "≥ " + s.Min
	case s.Min == "":
		text = "≤ " + s.Max
	}
	if s.orZero {
		return "0 or " + text
	}
	return text
}

// Parse turns a user's text into a value, checked. Format turns it back.
func (s *Setting) Parse(text string) (any, error) {
	if s.OneOf != nil {
		return s.choose(text)
	}
	v, err := s.kind.read(text)
	if err != nil {
		return nil, err
	}
	return v, s.Check(v)
}

// Format writes a value as Parse reads it and as YAML takes it.
func (s *Setting) Format(v any) string {
	if s.OneOf != nil {
		return kindString.format(v)
	}
	return s.kind.format(v)
}

// Get returns the setting's value in config, a pointer to a struct that has the field.
func (s *Setting) Get(config any) any {
	field := s.field(config)
	switch {
	case s.kind == kindString:
		return field.String()
	case s.kind == kindBool && s.OneOf != nil && field.Bool():
		return s.OneOf[1].Name
	case s.kind == kindBool && s.OneOf != nil:
		return s.OneOf[0].Name
	case field.CanUint():
		return int64(min(field.Uint(), math.MaxInt64)) // only a drawn seed is larger
	case s.kind == kindInt || s.kind == kindBytes:
		return field.Int()
	case s.Several():
		return append([]string{}, field.Interface().([]string)...)
	}
	return field.Interface()
}

// Set puts a value that Parse returned into config. A list is copied.
func (s *Setting) Set(config, value any) {
	if items, ok := value.([]string); ok {
		value = append([]string{}, items...)
	}
	if s.kind == kindBool && s.OneOf != nil {
		value = value == s.OneOf[1].Name
	}
	field := s.field(config)
	field.Set(reflect.ValueOf(value).Convert(field.Type()))
}

func (s *Setting) field(config any) reflect.Value {
	return reflect.ValueOf(config).Elem().FieldByIndex(s.index)
}
