package simulate

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// fields are the keys that a mapping may have, each with those below it; nil
// below is a value of its own.
type fields map[string]fields

// planFields is read off the Plan's own tags, once.
var planFields = fieldsOf(reflect.TypeFor[Plan]())

func fieldsOf(t reflect.Type) fields {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[yaml.Node]() {
		return nil
	}
	all := fields{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			maps.Copy(all, fieldsOf(f.Type))
		case name == "":
			all[strings.ToLower(f.Name)] = fieldsOf(f.Type)
		default:
			all[name] = fieldsOf(f.Type)
		}
	}
	return all
}

// known refuses keys that the plan does not have, and keys that are there twice.
func (d *document) known(n *yaml.Node, may fields, path string) error {
	if n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			if err := d.known(item, may, path); err != nil {
				return err
			}
		}
		return nil
	}
	if may == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		below, ok := may[key.Value]
		var err error
		switch {
		case !ok:
			err = fmt.Errorf("no such setting; there are %s", strings.Join(slices.Sorted(maps.Keys(may)), ", "))
		case seen[key.Value]:
			err = errors.New("is there twice")
		}
		if err != nil {
			return &PlanError{File: d.file, Line: key.Line, Path: join(path, key.Value), Err: err}
		}
		seen[key.Value] = true
		if err := d.known(n.Content[i+1], below, join(path, key.Value)); err != nil {
			return err
		}
	}
	return nil
}
