package simulate

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// PlanError is what is wrong with a plan, and where.
type PlanError struct {
	File string
	Line int    // 0 where it is no single one
	Path string // the setting, empty where it is none
	Err  error
}

// Error implements error.
func (e *PlanError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", where, e.Line)
	}
	if e.Path != "" {
		where += ": " + e.Path
	}
	return where + ": " + e.Err.Error()
}

// Unwrap returns what is wrong.
func (e *PlanError) Unwrap() error { return e.Err }

// document is a plan's YAML, from which each variant is decoded anew.
type document struct {
	file string
	root *yaml.Node // a mapping
}

// readDocument parses a plan's text.
func readDocument(file string, text []byte) (*document, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, &PlanError{File: file, Err: errors.New(strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, &PlanError{File: file, Line: 1, Err: errors.New("a plan is a mapping of settings: name, workload, fleet, …")}
	}
	return &document{file, doc.Content[0]}, nil
}

// decode reads the document into a Plan, and refuses keys that it does not have.
func (d *document) decode() (*Plan, error) {
	p := &Plan{}
	if err := d.known(d.root, planFields, ""); err != nil {
		return nil, err
	}
	if err := d.root.Decode(p); err != nil {
		var kinds *yaml.TypeError
		if errors.As(err, &kinds) {
			return nil, d.typeError(kinds.Errors[0])
		}
		return nil, &PlanError{File: d.file, Err: err}
	}
	return p, nil
}

// typeError turns the library's "line 3: cannot unmarshal …" into ours.
func (d *document) typeError(text string) error {
	e := &PlanError{File: d.file, Err: errors.New(text)}
	var line int
	if n, _ := fmt.Sscanf(text, "line %d:", &line); n == 1 {
		e.Line, e.Err = line, errors.New(strings.TrimSpace(text[strings.IndexByte(text, ':')+1:]))
		e.Path = d.pathAt(d.root, line, "")
	}
	return e
}

// pathAt finds the deepest setting whose value is on a line.
func (d *document) pathAt(n *yaml.Node, line int, path string) string {
	best := ""
	for i := 0; i+1 < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		at := join(path, k.Value)
		if deeper := d.pathAt(v, line, at); deeper != "" {
			return deeper
		}
		if v.Line == line {
			best = at
		}
	}
	return best
}

// find returns the node at a path, nil where there is none.
func (d *document) find(path string) *yaml.Node {
	n := d.root
	for part := range strings.SplitSeq(path, ".") {
		n = child(n, part)
		if n == nil {
			return nil
		}
	}
	return n
}

// problem is an error about the setting at a path.
func (d *document) problem(path, format string, args ...any) error {
	e := &PlanError{File: d.file, Path: path, Err: fmt.Errorf(format, args...)}
	for at := path; at != ""; at = at[:max(0, strings.LastIndexByte(at, '.'))] {
		if n := d.find(at); n != nil {
			e.Line = n.Line
			break
		}
	}
	return e
}

// with is the document with other values at some paths.
func (d *document) with(sets []setting) *document {
	out := &document{d.file, clone(d.root)}
	for _, s := range sets {
		n := out.root
		parts := strings.Split(s.path, ".")
		for _, part := range parts[:len(parts)-1] {
			next := child(n, part)
			if next == nil || next.Kind != yaml.MappingNode {
				next = put(n, part, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: s.value.Line})
			}
			n = next
		}
		put(n, parts[len(parts)-1], s.value)
	}
	return out
}

// setting is a value at a path.
type setting struct {
	path  string
	value *yaml.Node
}

func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
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

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// locate makes a path of the plan's own folder.
func locate(plan, path string) string {
	if filepath.IsAbs(path) || path == "" {
		return path
	}
	return filepath.Join(filepath.Dir(plan), path)
}

// settings reads a mapping of paths to values, or to lists of them.
func (d *document) settings(n *yaml.Node, where string, lists bool) ([]setting, error) {
	if n.Kind == 0 {
		return nil, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, &PlanError{File: d.file, Line: n.Line, Path: where, Err: errors.New("must map paths of settings, as workload.speed, to values")}
	}
	var all []setting
	for i := 0; i+1 < len(n.Content); i += 2 {
		s := setting{n.Content[i].Value, n.Content[i+1]}
		if lists && (s.value.Kind != yaml.SequenceNode || len(s.value.Content) == 0) {
			return nil, &PlanError{File: d.file, Line: s.value.Line, Path: where + "." + s.path, Err: errors.New("must be a list of values")}
		}
		all = append(all, s)
	}
	return all, nil
}

// cross is every combination of one value of each axis.
func cross(axes []setting) [][]setting {
	points := [][]setting{nil}
	for _, a := range axes {
		var next [][]setting
		for _, p := range points {
			for _, v := range a.value.Content {
				next = append(next, append(slices.Clone(p), setting{a.path, v}))
			}
		}
		points = next
	}
	return points
}
