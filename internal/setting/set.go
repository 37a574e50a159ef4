package setting

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	tandemPrefix = "TANDEM_"
	dynPrefix    = "DYN_"
	configName   = "config" // --config FILE or TANDEM_CONFIG says where the file is; DYN_CONFIG would be another program's
)

// Asked is the error of arguments that request help. The command then prints [Set.Usage].
type Asked struct {
	// All asks for every setting: --help-all.
	All bool
	// Topic is what follows --help: a setting, a group or a part of a name. Empty asks for the first settings.
	Topic string
}

func (Asked) Error() string { return "help was requested" }

// Set is the settings of one command: those of the struct that it fills.
type Set struct {
	config any // a pointer to the struct
	rows   []*Setting
	byName map[string]*Setting // older names too
	others []string            // names of other commands, ignored in the environment and in a file
}

// NewSet returns the settings of config, a pointer to a command's struct. others are the structs of the program's other
// commands. Their variables and keys are ignored, so that one environment and one file can serve a gateway and
// its workers; as flags they stay unknown. A field that has no help borrows its tags from them. NewSet panics where two
// fields have one name, which is a mistake in the program.
func NewSet(config any, others ...any) *Set {
	s := &Set{config: config, byName: map[string]*Setting{}}
	lenders := map[string]*Setting{}
	for _, other := range others {
		for _, row := range Of(other) {
			s.others = append(s.others, row.Names()...)
			if !row.Borrowed() && lenders[row.Name] == nil {
				lenders[row.Name] = row
			}
		}
	}
	for _, row := range Of(config) {
		if row.Borrowed() {
			from := lenders[row.Name]
			if from == nil {
				panic(fmt.Sprintf("settings: %q has no help, and no other command has such a setting", row.Name))
			}
			whole, err := row.Borrow(from)
			if err != nil {
				panic("settings: " + err.Error())
			}
			row = whole
		}
		for _, name := range row.Names() {
			if s.byName[name] != nil {
				panic(fmt.Sprintf("settings: two fields are called %q", name))
			}
			s.byName[name] = row
		}
		s.rows = append(s.rows, row)
	}
	return s
}

// Group is a heading and the settings under it.
type Group struct {
	Title string
	Rows  []*Setting
}

// Groups are the settings by heading, each in the order in which it comes first.
func (s *Set) Groups() []Group {
	var found []Group
	for _, row := range s.rows {
		i := slices.IndexFunc(found, func(g Group) bool { return g.Title == row.Group })
		if i < 0 {
			i = len(found)
			found = append(found, Group{Title: row.Group})
		}
		found[i].Rows = append(found[i].Rows, row)
	}
	return found
}

// names returns every name to suggest, older ones included, after that of the file, which is no key of the file.
func (s *Set) names() []string {
	names := []string{configName}
	for _, row := range s.rows {
		names = append(names, row.Names()...)
	}
	return names
}

// Flags returns the flags that give config, of the set's type, its values: those whose value is not the default.
func Flags(config any) []string {
	var args []string
	for _, row := range Of(config) {
		value := row.Get(config)
		if byDefault, _ := row.Parse(row.Default); row.Borrowed() || fmt.Sprint(value) == fmt.Sprint(byDefault) {
			continue
		}
		switch v := value.(type) {
		case bool:
			args = append(args, Flag(row, row.Name)) // which is what changes the default
		case []string:
			for _, item := range v {
				args = append(args, "--"+row.Name, item)
			}
		case string:
			args = append(args, "--"+row.Name, v)
		default:
			args = append(args, "--"+row.Name, row.Format(v))
		}
	}
	return args
}

// envSuffix turns router-mode into ROUTER_MODE.
func envSuffix(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// kebab turns ROUTER_MODE and router_mode into router-mode.
func kebab(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

// unknown is the error for a name that is in no table: it offers the nearest that is. A "no-" in front of a known
// name is explained, because the flag has it and the variable and the key do not. spell writes a known name the way
// the unknown one would have to be written. One of an earlier version has its own error.
func unknown(name string, known []string, spell func(string) string) error {
	if err := wasRemoved(name); err != nil {
		return err
	}
	if rest, ok := strings.CutPrefix(name, "no-"); ok && slices.Contains(known, rest) {
		return fmt.Errorf("there is no such name: --no-%[1]s is the flag, elsewhere set %[2]s to false", rest, spell(rest))
	}
	best := Nearest(name, known)
	if best == "" {
		return errors.New("there is no such setting")
	}
	return fmt.Errorf("there is no such setting; the nearest is %s", spell(best))
}
