package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readFile reads the YAML file at path: one mapping, a key for each setting.
// where is who named the file, for the error that it cannot be read.
func (s *Set) readFile(path, where string, read func(string) ([]byte, error)) (found []assignment, problems []error) {
	data, err := read(path)
	if err != nil {
		return nil, []error{&Error{Where: where, Err: err}}
	}
	mapping, err := topMapping(data)
	if err != nil {
		return nil, []error{&Error{Where: clip(path), Err: err}}
	}
	if mapping == nil {
		return nil, nil
	}
	lines := map[string]int{} // of each key, spelled in kebab case
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := strings.ReplaceAll(key.Value, "_", "-")
		where := fmt.Sprintf("%s:%d %s", clip(path), key.Line, clip(key.Value))
		var a *assignment
		if line, ok := lines[name]; ok {
			err = fmt.Errorf("is set on line %d already", line)
		} else {
			lines[name] = key.Line
			a, err = s.readKey(name, value)
		}
		switch {
		case err != nil:
			problems = append(problems, &Error{Where: where, Err: err})
		case a != nil:
			a.where, a.source = where, fmt.Sprintf("file %s:%d", clip(path), key.Line)
			found = append(found, *a)
		}
	}
	return found, problems
}

// readKey reads one key. It returns neither an assignment nor an error for a
// key of another command.
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
		text, err := scalar(value)
		if err != nil {
			return nil, err
		}
		a := assign(row, name, "", "", text)
		return &a, nil
	}
	if value.Kind != yaml.SequenceNode || !row.Kind.several() {
		return nil, fmt.Errorf("takes %s, not a %s", row.Kind.expected(), nodeNames[value.Kind])
	}
	items := []string{}
	for i, item := range value.Content {
		if item.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("item %d is a %s, not a value", i+1, nodeNames[item.Kind])
		}
		text, err := scalar(item)
		if err != nil {
			return nil, fmt.Errorf("item %d %w", i+1, err)
		}
		items = append(items, text)
	}
	return &assignment{row: row, name: name, value: items, err: row.check(items)}, nil
}

// nodeNames are what a user calls the nodes of YAML.
var nodeNames = map[yaml.Kind]string{
	yaml.MappingNode:  "mapping",
	yaml.SequenceNode: "list",
	yaml.AliasNode:    "reference to another value",
	yaml.ScalarNode:   "single value",
}

// scalar returns the text of a value. A key with nothing after it is more
// often an oversight than a wish.
func scalar(node *yaml.Node) (string, error) {
	if node.ShortTag() == "!!null" {
		return "", errors.New(`has no value: leave the key out for the default, or write ""`)
	}
	return node.Value, nil
}

// topMapping parses the file and returns its mapping, nil for an empty file.
func topMapping(data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, yamlError(err)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("holds a second document; one is read")
	}
	if len(doc.Content) != 1 {
		return nil, nil
	}
	top := doc.Content[0]
	switch {
	case top.Kind == yaml.ScalarNode && top.ShortTag() == "!!null":
		return nil, nil
	case top.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("line %d: settings are a mapping, as router-mode: kv; this is a %s", top.Line, nodeNames[top.Kind])
	}
	return top, nil
}

// yamlError takes the library's name off its message.
func yamlError(err error) error {
	return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
}
