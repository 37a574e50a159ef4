package settings

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

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

// Source says where the value of a setting came from: "default", "flag", "env DYN_ROUTER_MODE", "file
// gateway.yaml:3". It is empty for a name that the set does not have.
func (r *Resolved) Source(name string) string { return r.values[name].source }

// UnknownVariables names the DYN_ variables that were passed over because no
// command knows them, each with the nearest name that is known.
func (r *Resolved) UnknownVariables() []string { return r.unknown }

// IsSet reports whether the setting was set, to whatever value.
func (r *Resolved) IsSet(name string) bool {
	source := r.Source(name)
	return source != "" && source != "default"
}

// Refuse makes an error that says where the value of a setting was set, for what only its consumer can find wrong
// with it: two settings that do not go together, a file that is not there.
func (r *Resolved) Refuse(name string, err error) error {
	return &setting.Error{Name: name + " (" + r.Source(name) + ")", Err: err}
}

// Placed returns err with the place where each setting that it names was set: what a Config's Validate finds.
func (r *Resolved) Placed(err error) error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range several.Unwrap() {
			all = append(all, r.Placed(one))
		}
		return errors.Join(all...)
	}
	if bad, ok := errors.AsType[*setting.Error](err); ok && r.IsSet(bad.Name) {
		return r.Refuse(bad.Name, bad.Err)
	}
	return err
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

// Row is a setting in force, for people to read.
type Row struct{ Group, Name, Value, Source, Help string }

// Rows are all settings in force, by group. Passwords in addresses are masked.
func (r *Resolved) Rows() []Row {
	var all []Row
	for _, g := range r.set.Groups() {
		for _, row := range g.Rows {
			v := r.values[row.Name]
			if row.Masked {
				v.value = masked(v.value)
			}
			all = append(all, Row{g.Title, row.Name, row.Format(v.value), v.source, row.Help})
		}
	}
	return all
}

// Print writes every setting in force as a line of YAML, by group: name, value, and its source as a comment. The
// output is a file for --config that resolves to the same values, but for passwords in addresses, which are masked.
func (r *Resolved) Print(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, row := range r.Rows() {
		fmt.Fprintf(b, "%s: %s  # %s\n", row.Name, row.Value, row.Source)
	}
	return b.Flush()
}
