package settings

import (
	"bufio"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Tag is the struct tag that [Resolved.Fill] reads: `setting:"http-port"`.
const Tag = "setting"

// Resolved is the value of every setting of a set, and where it came from. It
// is immutable and safe for concurrent use.
type Resolved struct {
	set    *Set
	values map[string]resolved // by the setting's name

	unknown []string
}

type resolved struct {
	value  any
	source string
}

// Fill sets every field of the struct at dst that carries a [Tag] to the value
// of the setting it names, and goes into fields that are structs without one.
// It panics where a tag names no setting of the set or a field's type is not
// that of the setting's kind, which is a mistake in the program that a test
// finds by filling the struct once.
func (r *Resolved) Fill(dst any) { r.fill(reflect.ValueOf(dst).Elem()) }

func (r *Resolved) fill(v reflect.Value) {
	for i := range v.NumField() {
		field, name := v.Field(i), v.Type().Field(i).Tag.Get(Tag)
		if name == "" {
			if field.Kind() == reflect.Struct {
				r.fill(field)
			}
			continue
		}
		found, ok := r.values[name]
		if !ok {
			panic(fmt.Sprintf("settings: %s.%s wants %q, which the set does not have", v.Type(), v.Type().Field(i).Name, name))
		}
		value := reflect.ValueOf(found.value)
		if value.Type() != field.Type() {
			panic(fmt.Sprintf("settings: %s.%s is a %s, but %q is a %s", v.Type(), v.Type().Field(i).Name, field.Type(), name, value.Type()))
		}
		if list, ok := found.value.([]string); ok {
			value = reflect.ValueOf(append([]string{}, list...))
		}
		field.Set(value)
	}
}

// Source says where the value of a setting came from: "default", "flag",
// "env DYN_ROUTER_MODE", "file gateway.yaml:3". It is empty for a name that the
// set does not have.
func (r *Resolved) Source(name string) string { return r.values[name].source }

// UnknownVariables names the DYN_ variables that were passed over because no
// command knows them, each with the nearest name that is known.
func (r *Resolved) UnknownVariables() []string { return r.unknown }

// IsSet reports whether somebody set the setting, to whatever value.
func (r *Resolved) IsSet(name string) bool {
	source := r.Source(name)
	return source != "" && source != "default"
}

// Refuse makes an error that says where the value of a setting was set, for
// what only its consumer can find wrong with it: two settings that do not go
// together, a file that is not there.
func (r *Resolved) Refuse(name string, err error) error {
	return &Error{Where: name + " (" + r.Source(name) + ")", Err: err}
}

// mask is what stands in the place of a user and password.
const mask = "xxxxx"

// masked is a String's or a List's value of addresses without what stands
// before their @: a token may be there without a password.
func masked(value any) any {
	if text, ok := value.(string); ok {
		return strings.Join(masked(strings.Split(text, ",")).([]string), ",")
	}
	items := slices.Clone(value.([]string))
	for i, item := range items {
		if at := strings.LastIndexByte(item, '@'); at >= 0 {
			scheme, _, found := strings.Cut(item[:at], "://")
			if found {
				scheme += "://"
			} else {
				scheme = ""
			}
			items[i] = scheme + mask + item[at:]
		}
	}
	return items
}

// Print writes every setting in force as a line of YAML, in the order of the
// table: name, value, and its source as a comment. The output is a file for
// --config that resolves to the same values, but for passwords in addresses,
// which are masked.
func (r *Resolved) Print(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, row := range r.set.Settings() {
		v := r.values[row.Name]
		if row.Credentials {
			v.value = masked(v.value)
		}
		fmt.Fprintf(b, "%s: %s  # %s\n", row.Name, row.Kind.format(v.value), v.source)
	}
	return b.Flush()
}
