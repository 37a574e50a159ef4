package setting

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Resolved is the value of every setting of a set, and where it came from. It is immutable and safe for concurrent
// use.
type Resolved struct {
	set     *Set
	values  map[string]resolved // by the setting's name
	unknown []string
}

type resolved struct {
	value  any
	source string
}

// Resolve finds the value of every setting of the set. args is the command line after the command's name; environ is
// as os.Environ gives it; readFile, as os.ReadFile, is called at most once, for the file that --config or
// TANDEM_CONFIG names. rest is what on the command line was not a flag.
//
// Names are matched exactly on the command line; in a file "-" and "_" are the same. A flag that is repeated counts
// the last time, lists add up. An environment variable that is empty counts as not set. A DYN_ variable that no
// command has may be another program's: it is ignored, see [Resolved.UnknownVariables], unless its name asks for
// protection.
//
// The error is an [Asked] or every mistake found as [*Error], joined. Without one the
// set's struct has its values.
func (s *Set) Resolve(args, environ []string, readFile func(string) ([]byte, error)) (_ *Resolved, rest []string, err error) {
	all := &reading{Set: s}
	if all.readArgs(args); all.asked != nil {
		return nil, nil, *all.asked
	}
	all.readEnviron(environ)
	if all.file != "" {
		all.readFile(readFile)
	}
	r := &Resolved{set: s, values: map[string]resolved{}, unknown: all.unknown}
	for _, row := range s.rows {
		r.values[row.Name] = all.value(row)
	}
	if len(all.problems) > 0 {
		return nil, nil, errors.Join(all.problems...)
	}
	Fill(s.config)
	for _, row := range s.rows {
		row.Set(s.config, r.values[row.Name].value)
	}
	return r, all.rest, nil
}

// value returns the value of one row: that of the first level that sets it. Every level is checked, whether it wins
// or not, except a DYN_ variable that loses.
func (r *reading) value(row *Setting) (v resolved) {
	for l := range levels {
		var last *entry
		for i := range r.entries[l] {
			g := &r.entries[l][i]
			switch {
			case g.row != row:
				continue
			case g.err != nil && l == fromDyn && v.source != "":
				continue
			case g.err != nil:
				r.refuse(g.where, g.err)
				continue
			case last != nil && !reflect.DeepEqual(last.value, g.value):
				r.refuse(last.where+" and "+g.where, fmt.Errorf("two names of one setting have %s and %s; set only %s",
					row.Format(last.value), row.Format(g.value), row.Name))
			}
			last = g
		}
		if last != nil && v.source == "" {
			v = resolved{last.value, last.source}
		}
	}
	if v.source == "" {
		value, err := row.Parse(row.Default)
		if err != nil {
			panic(err) // Of parsed it
		}
		v = resolved{value, "default"}
	}
	return v
}

// UnknownVariables returns the DYN_ variables that were ignored because no command has them, each with the nearest
// name that one has.
func (r *Resolved) UnknownVariables() []string { return r.unknown }

// Source returns where the value of a setting came from: "default", "flag", "env DYN_ROUTER_MODE", "file
// gateway.yaml:3". It is empty for a name that the set does not have.
func (r *Resolved) Source(name string) string { return r.values[name].source }

// IsSet reports whether the setting was set, to whatever value.
func (r *Resolved) IsSet(name string) bool {
	source := r.Source(name)
	return source != "" && source != "default"
}

// Refuse returns an error with the place where a setting was set, for what only its consumer can find wrong with it:
// two settings that do not go together, a file that is not there.
func (r *Resolved) Refuse(name string, err error) error {
	return &Error{Name: name + " (" + r.Source(name) + ")", Err: err}
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
	for bad, ok := errors.AsType[*Error](err); ok; bad, ok = errors.AsType[*Error](bad.Err) {
		if r.IsSet(bad.Name) {
			return r.Refuse(bad.Name, bad.Err)
		}
	}
	return err
}

// masked is the value of addresses without what stands before their @: a token may be there without a password.
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
			items[i] = scheme + "xxxxx" + item[at:]
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
