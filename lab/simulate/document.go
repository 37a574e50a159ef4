package simulate

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-pd/tandem/internal/setting"
)

// document is a plan's YAML, from which each variant is decoded again.
type document struct{ *setting.Document }

// readDocument parses a plan's text.
func readDocument(file string, text []byte) (*document, error) {
	doc, err := setting.Parse(file, text)
	if err != nil {
		return nil, err
	}
	if doc.Root == nil || doc.Root.Kind != yaml.MappingNode {
		return nil, &setting.Error{File: file, Line: 1, Err: errors.New("a plan is a mapping of settings: name, workload, fleet, …")}
	}
	return &document{doc}, nil
}

// plan decodes the document.
func (d *document) plan() (*Plan, error) {
	p := &Plan{}
	return p, d.Decode(p)
}

// with is the document with other values at some paths.
func (d *document) with(sets []override) *document {
	out := &document{&setting.Document{File: d.File, Root: clone(d.Root)}}
	for _, s := range sets {
		n := out.Root
		parts := strings.Split(s.path, ".")
		for _, part := range parts[:len(parts)-1] {
			next := setting.Child(n, part)
			if next == nil || next.Kind != yaml.MappingNode {
				next = put(n, part, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: s.value.Line})
			}
			n = next
		}
		put(n, parts[len(parts)-1], s.value)
	}
	return out
}

// override is a value at a path.
type override struct {
	path  string
	value *yaml.Node
}

func put(n *yaml.Node, key string, value *yaml.Node) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			n.Content[i+1] = value
			return value
		}
	}
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key, Line: value.Line}, value)
	return value
}

func clone(n *yaml.Node) *yaml.Node {
	c := *n
	c.Content = make([]*yaml.Node, len(n.Content))
	for i := range n.Content {
		c.Content[i] = clone(n.Content[i])
	}
	return &c
}

// locate makes a path of the plan's own folder.
func locate(plan, path string) string {
	if filepath.IsAbs(path) || path == "" {
		return path
	}
	return filepath.Join(filepath.Dir(plan), path)
}

// settings reads a mapping of paths to values, or to lists of them.
func (d *document) settings(n *yaml.Node, where string, lists bool) ([]override, error) {
	if n.Kind == 0 {
		return nil, nil
	}
	entries, err := d.Entries(n, where)
	if err != nil {
		return nil, err
	}
	var all []override
	for _, e := range entries {
		if lists && (e.Value.Kind != yaml.SequenceNode || len(e.Value.Content) == 0) {
			return nil, &setting.Error{File: d.File, Line: e.Value.Line, Name: e.Path, Err: errors.New("must be a list of values")}
		}
		all = append(all, override{e.Key, e.Value})
	}
	return all, nil
}

// cross is every combination of one value of each axis.
func cross(axes []override) [][]override {
	points := [][]override{nil}
	for _, a := range axes {
		var next [][]override
		for _, p := range points {
			for _, v := range a.value.Content {
				next = append(next, append(slices.Clone(p), override{a.path, v}))
			}
		}
		points = next
	}
	return points
}
