package settings

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/internal/setting"
)

// readFile reads the YAML file at path: one mapping with a key for each setting.
// where is what named the file, for the error that it cannot be read.
func (s *Set) readFile(path, where string, read func(string) ([]byte, error)) (found []assignment, problems []error) {
	data, err := read(path)
	if err != nil {
		return nil, []error{&setting.Error{Name: where, Err: err}}
	}
	doc, err := setting.Parse(setting.Clip(path), data)
	switch {
	case err != nil:
		return nil, []error{err}
	case doc.Root == nil:
		return nil, nil
	case doc.Root.Kind != yaml.MappingNode:
		return nil, []error{doc.Errorf("", "settings are a mapping, as router-mode: kv; this is %s", setting.Kind(doc.Root))}
	}
	entries, err := doc.Entries(doc.Root, "")
	if err != nil {
		problems = append(problems, err)
	}
	for _, e := range entries {
		a, err := s.readKey(strings.ReplaceAll(e.Key, "_", "-"), e.Value)
		switch {
		case err != nil:
			problems = append(problems, &setting.FileError{File: doc.File, Line: e.Line, Field: e.Path, Err: err})
		case a != nil:
			a.source = fmt.Sprintf("file %s:%d", doc.File, e.Line)
			a.where = strings.TrimPrefix(a.source, "file ") + " " + e.Path
			found = append(found, *a)
		}
	}
	return found, problems
}

// readKey reads one key. It returns neither an assignment nor an error for a key
// of another command. Values that a setting refuses are in the assignment.
func (s *Set) readKey(name string, value *yaml.Node) (*assignment, error) {
	row := s.byName[name]
	switch {
	case row != nil:
	case name == configName:
		return nil, errors.New("a file cannot name another")
	case s.elsewhere(name):
		return nil, nil
	default:
		return nil, unknown(name, s.names()[1:], func(n string) string { return n })
	}
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	if value.Kind == yaml.ScalarNode {
		if setting.IsNull(value) {
			return nil, errNoValue
		}
		a := assign(row, name, "", "", value.Value)
		return &a, nil
	}
	if value.Kind != yaml.SequenceNode || !row.Several() {
		return nil, fmt.Errorf("takes %s, not %s", row.Expected(), setting.Kind(value))
	}
	items := []string{}
	for i, item := range value.Content {
		if item.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("item %d is %s, not a value", i+1, setting.Kind(item))
		}
		if setting.IsNull(item) {
			return nil, fmt.Errorf("item %d %w", i+1, errNoValue)
		}
		items = append(items, item.Value)
	}
	return &assignment{row: row, name: name, value: items, err: row.Check(items)}, nil
}

// errNoValue refuses a key with nothing after it, which is more often an oversight than intended.
var errNoValue = errors.New(`has no value: leave the key out for the default, or write ""`)
