package settings

import (
	"fmt"
	"slices"
	"strings"
)

const (
	tandemPrefix = "TANDEM_"
	dynPrefix    = "DYN_"
	configName   = "config" // --config FILE or TANDEM_CONFIG says where the file is; DYN_CONFIG would be another program's
)

// reserved are the names that every command has and no table may take.
var reserved = []string{configName, "help"}

// Set is the settings that one command takes. It is immutable and safe for
// concurrent use.
type Set struct {
	groups []Group
	byName map[string]*Setting // older names too
	beside []string            // names of other commands, passed over in the environment and in a file
}

// NewSet composes tables into a command's set. It panics when a table is wrong
// in itself: two rows of one name, a default that its own row refuses. Such a
// table is a mistake in the program, and building the set finds it.
func NewSet(groups ...Group) *Set {
	s := &Set{groups: groups, byName: map[string]*Setting{}}
	for _, g := range groups {
		for i := range g.Settings {
			row := &g.Settings[i]
			if err := row.malformed(); err != nil {
				panic(fmt.Sprintf("settings: %q under %q: %v", row.Name, g.Title, err))
			}
			for _, name := range row.Names() {
				if _, taken := s.byName[name]; taken {
					panic(fmt.Sprintf("settings: two rows are called %q", name))
				}
				s.byName[name] = row
			}
		}
	}
	return s
}

// Beside returns a set that also knows the settings of other commands of the
// program: their variables and keys are passed over instead of refused, so that
// one environment and one file can serve a gateway and its workers. As flags
// they stay unknown.
func (s *Set) Beside(groups ...Group) *Set {
	wider := *s
	wider.beside = slices.Clone(s.beside)
	for _, g := range groups {
		for i := range g.Settings {
			wider.beside = append(wider.beside, g.Settings[i].Names()...)
		}
	}
	return &wider
}

// Settings returns every row in the order of its groups. The rows are shared:
// they are not to be changed.
func (s *Set) Settings() []*Setting {
	var rows []*Setting
	for _, g := range s.groups {
		for i := range g.Settings {
			rows = append(rows, &g.Settings[i])
		}
	}
	return rows
}

// elsewhere reports whether the name belongs to another command.
func (s *Set) elsewhere(name string) bool { return slices.Contains(s.beside, name) }

// names returns every name to suggest from: the set's own, older ones included,
// after that of the file, which is no key of the file.
func (s *Set) names() []string {
	names := []string{configName}
	for _, row := range s.Settings() {
		names = append(names, row.Names()...)
	}
	return names
}

// envSuffix turns router-mode into ROUTER_MODE.
func envSuffix(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// kebab turns ROUTER_MODE and router_mode into router-mode.
func kebab(name string) string {
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}
