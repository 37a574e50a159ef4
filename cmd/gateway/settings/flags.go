package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

// helpFlags ask for help; --help and -h may be followed by a topic.
var helpFlags = []string{"-h", "--help", "--help-all"}

// commandLine is what the arguments say.
type commandLine struct {
	assignments []assignment // at most one for each name: the last, or all items of a List or Words
	config      string       // --config
	help        *Asked       // nil unless help was asked for
	rest        []string
}

// readArgs reads --x=v, --x v, and for a bool --x, --x=v and --no-x. Flags and
// other arguments may be mixed; after "--" nothing is a flag.
func (s *Set) readArgs(args []string) (line commandLine, problems []error) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			line.rest = append(line.rest, args...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			line.rest = append(line.rest, arg)
			continue
		}
		flag, value, inline := strings.Cut(arg, "=")
		if slices.Contains(helpFlags, flag) {
			if !inline && len(args) > 0 {
				value = args[0]
			}
			if line.help = (&Asked{Topic: value}); flag == "--help-all" {
				line.help = &Asked{All: true}
			}
			break
		}
		taken, err := s.readFlag(&line, flag, value, inline, args)
		if err != nil {
			problems = append(problems, &setting.Error{Name: "flag " + setting.Clip(flag), Err: err})
		}
		args = args[taken:]
	}
	return line, problems
}

// readFlag reads one flag and says how many of the arguments after it were its value: none or one.
func (s *Set) readFlag(line *commandLine, flag, value string, inline bool, after []string) (taken int, err error) {
	name, long := strings.CutPrefix(flag, "--")
	row := s.byName[name]
	if positive, ok := strings.CutPrefix(name, "no-"); row == nil && ok && s.byName[positive] != nil && s.byName[positive].Switch() {
		if inline {
			return 0, fmt.Errorf("takes no value: write --%s=%s", positive, setting.Clip(value))
		}
		name, row, value, inline = positive, s.byName[positive], "false", true
	}
	switch {
	case !long || row == nil && name != configName:
		return 0, unknown(strings.TrimLeft(flag, "-"), s.names(), func(n string) string { return "--" + n })
	case inline:
	case row != nil && row.Switch():
		if len(after) > 0 && (after[0] == "true" || after[0] == "false") {
			return 1, fmt.Errorf("is a switch: write --%s=%s", name, after[0])
		}
		value = "true"
	case len(after) == 0 || strings.HasPrefix(after[0], "--"):
		return 0, errors.New("a value is missing")
	default:
		value, taken = after[0], 1
	}
	if row == nil {
		if value == "" {
			return taken, errors.New("a file's name is missing")
		}
		line.config = value
		return taken, nil
	}
	line.set(assign(row, name, "flag "+flag, "flag", value))
	return taken, nil
}

// set records a flag, over an earlier one of the same name; List and Words add to it. A value that was refused stays
// refused, so that no mistake is covered up.
func (l *commandLine) set(a assignment) {
	i := slices.IndexFunc(l.assignments, func(b assignment) bool { return b.name == a.name })
	if i < 0 {
		l.assignments = append(l.assignments, a)
		return
	}
	earlier := &l.assignments[i]
	if earlier.err != nil {
		return
	}
	if items, ok := a.value.([]string); ok && a.err == nil {
		a.value = append(slices.Clone(earlier.value.([]string)), items...)
		a.err = a.row.Check(a.value)
	}
	*earlier = a
}
