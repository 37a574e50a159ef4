package settings

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/tandem-pd/tandem/internal/setting"
)

// level is where a value comes from. A higher level wins.
type level uint8

const (
	fromDefault level = iota
	fromFile
	fromDyn
	fromTandem
	fromFlag
)

// assignment is one place where somebody set something.
type assignment struct {
	row    *setting.Setting
	name   string // as it was written: the name or an older one
	where  string // for errors: "flag --x", "gateway.yaml:12 x"
	source string // for Print: "flag", "file gateway.yaml:12"
	value  any
	err    error // why the value was refused, if it was
}

// assign parses a text that somebody gave for the row under name.
func assign(row *setting.Setting, name, where, source, text string) assignment {
	v, err := row.Parse(text)
	return assignment{row: row, name: name, where: where, source: source, value: v, err: err}
}

// Resolve finds the value of every setting of the set. args is the command line after the command's name; environ is
// as os.Environ gives it; readFile, as os.ReadFile, is called at most once, for the file that --config or
// TANDEM_CONFIG names. rest is what on the command line was not a flag.
//
// Names are matched exactly on the command line; in a file "-" and "_" are the same. A flag that is repeated counts
// the last time, List and Words add up. An environment variable that is empty counts as not set. A DYN_ variable that
// no command knows may be another program's: it is passed over, see [Resolved.UnknownVariables], unless its name asks
// for protection.
//
// The error is an [Asked], which is an [ErrHelp], or every mistake found as [*setting.Error], joined.
// Without one the set's struct has its values.
func (s *Set) Resolve(args, environ []string, readFile func(string) ([]byte, error)) (r *Resolved, rest []string, err error) {
	var all [fromFlag + 1][]assignment
	var problems []error
	line, ps := s.readArgs(args)
	if line.help != nil {
		return nil, nil, *line.help
	}
	problems = append(problems, ps...)
	all[fromFlag] = line.assignments

	env, ps := s.readEnviron(environ)
	problems = append(problems, ps...)
	all[fromTandem], all[fromDyn] = env.tandem, env.dyn

	path, where := env.config, tandemPrefix+envSuffix(configName)
	if line.config != "" {
		path, where = line.config, "flag --"+configName
	}
	if path != "" {
		all[fromFile], ps = s.readFile(path, where, readFile)
		problems = append(problems, ps...)
	}

	r = &Resolved{set: s, values: map[string]resolved{}, unknown: env.unknown}
	for _, row := range s.rows {
		v, ps := settle(row, &all)
		problems = append(problems, ps...)
		r.values[row.Name] = v
	}
	if len(problems) > 0 {
		return nil, nil, errors.Join(problems...)
	}
	setting.Fill(s.config)
	for _, row := range s.rows {
		row.Set(s.config, r.values[row.Name].value)
	}
	return r, line.rest, nil
}

// settle picks the value of one row: the highest level that sets it. Every level is checked, whether it wins or not,
// but for the value of a DYN_ variable that loses.
func settle(row *setting.Setting, all *[fromFlag + 1][]assignment) (v resolved, problems []error) {
	for l := fromFlag; l > fromDefault; l-- {
		var last *assignment
		for i := range all[l] {
			a := &all[l][i]
			if a.row != row {
				continue
			}
			if a.err != nil {
				if l != fromDyn || v.source == "" {
					problems = append(problems, &setting.Error{Name: a.where, Err: a.err})
				}
				continue
			}
			if last != nil && !reflect.DeepEqual(last.value, a.value) {
				problems = append(problems, &setting.Error{Name: last.where + " and " + a.where, Err: fmt.Errorf(
					"two names of one setting say %s and %s; set only %s", row.Format(last.value), row.Format(a.value), row.Name)})
			}
			last = a
		}
		if last != nil && v.source == "" {
			v = resolved{value: last.value, source: last.source}
		}
	}
	if v.source == "" {
		def, err := row.Parse(row.Default)
		if err != nil {
			panic(err) // setting.Of parsed it
		}
		v = resolved{value: def, source: "default"}
	}
	return v, problems
}
