package setting

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Document is the one YAML document of a file.
type Document struct {
	File string
	// Root is nil where the file is empty.
	Root *yaml.Node
}

// Entry is one key of a mapping.
type Entry struct {
	Key   string
	Line  int    // of the key
	Path  string // of the value
	Value *yaml.Node
}

// Parse reads the one document of a file. Its error is an [*Error].
func Parse(file string, data []byte) (*Document, error) {
	d := &Document{File: file}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return d, nil
	} else if err != nil {
		return nil, &Error{File: file, Err: errors.New(strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, &Error{File: file, Err: errors.New("has a second document; only one is allowed")}
	}
	if len(doc.Content) == 1 && !IsNull(doc.Content[0]) {
		d.Root = doc.Content[0]
	}
	return d, nil
}

// Errorf returns an error about the setting at path. Its line is that of the deepest part of path that the document
// has.
func (d *Document) Errorf(path, format string, args ...any) *Error {
	e := &Error{File: d.File, Name: path, Err: fmt.Errorf(format, args...)}
	n := d.Root
	if n != nil {
		e.Line = n.Line
	}
	for part := range strings.SplitSeq(path, ".") {
		name, index, listed := strings.Cut(strings.TrimSuffix(part, "]"), "[")
		if n = Child(n, name); n != nil {
			e.Line = n.Line
		}
		if i, err := strconv.Atoi(index); listed && err == nil && n != nil && i < len(n.Content) {
			n = n.Content[i]
			e.Line = n.Line
		}
	}
	return e
}

func (d *Document) at(n *yaml.Node, path, format string, args ...any) *Error {
	return &Error{File: d.File, Line: n.Line, Name: path, Err: fmt.Errorf(format, args...)}
}

// Entries returns the keys of a mapping in the file's order. A key that is not a word, or is given twice, is left out
// and reported in the error, which joins [*Error]s. Keys that differ in - and _ alone are the same.
func (d *Document) Entries(n *yaml.Node, path string) ([]Entry, error) {
	if n.Kind != yaml.MappingNode {
		return nil, d.at(n, path, "is %s, not a mapping", Kind(n))
	}
	var entries []Entry
	var problems []error
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		e := Entry{Key: key.Value, Line: key.Line, Path: strings.TrimPrefix(path+"."+Clip(key.Value), "."), Value: n.Content[i+1]}
		name := strings.ReplaceAll(key.Value, "_", "-")
		switch {
		case key.Kind != yaml.ScalarNode:
			problems = append(problems, d.at(key, path, "a key is %s", Kind(key)))
		case lines[name] != 0:
			problems = append(problems, d.at(key, e.Path, "is given on line %d already", lines[name]))
		default:
			lines[name] = key.Line
			entries = append(entries, e)
		}
	}
	return entries, errors.Join(problems...)
}

// Child returns the value of a mapping's key, nil where there is none.
func Child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; n != nil && n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// Kind returns what a user calls a node.
func Kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "a reference to another value"
	}
	return "a single value"
}

// IsNull reports whether a key has nothing after it, which is more often an oversight than a wish.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Decode reads the document into the struct or list that dst points to, by its yaml tags. Settings that the document
// does not have stay as they are in dst. Unknown keys, keys given twice, values of the wrong kind, empty values and
// references are mistakes. The error joins all of them as [*Error]s.
func (d *Document) Decode(dst any) error {
	if d.Root == nil {
		return nil
	}
	r := &decoder{Document: d}
	r.value(d.Root, "", reflect.ValueOf(dst).Elem())
	return errors.Join(r.problems...)
}

// decoder collects the mistakes of one Decode.
type decoder struct {
	*Document
	problems []error
}

func (r *decoder) refuse(n *yaml.Node, path, format string, args ...any) {
	r.problems = append(r.problems, r.at(n, path, format, args...))
}

// value reads n into v.
func (r *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	switch kind := v.Kind(); {
	case v.Type() == reflect.TypeFor[yaml.Node]():
		v.Set(reflect.ValueOf(*n))
	case IsNull(n):
		r.refuse(n, path, "has no value: leave the key out for the default")
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.value(n, path, v.Elem())
	case kind == reflect.Struct || kind == reflect.Map:
		r.mapping(n, path, v)
	case kind == reflect.Slice && n.Kind != yaml.SequenceNode:
		r.refuse(n, path, "is %s, not a list", Kind(n))
	case kind == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			r.value(item, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case n.Kind != yaml.ScalarNode:
		r.refuse(n, path, "is %s, not a single value", Kind(n))
	case n.Decode(v.Addr().Interface()) != nil || fraction(n, v):
		r.refuse(n, path, "%s is %s", Quote(n.Value), wanted(v.Type()))
	}
}

// mapping reads n's keys into the fields of a struct, or into a map with keys of the user's choice.
func (r *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	entries, err := r.Entries(n, path)
	if err != nil {
		r.problems = append(r.problems, err)
	}
	fields := map[string]reflect.Value{}
	if v.Kind() == reflect.Map {
		v.Set(reflect.MakeMap(v.Type()))
	} else {
		fieldsOf(v, fields)
	}
	for _, e := range entries {
		field, known := fields[e.Key]
		switch {
		case v.Kind() == reflect.Map:
			item := reflect.New(v.Type().Elem()).Elem()
			r.value(e.Value, e.Path, item)
			v.SetMapIndex(reflect.ValueOf(e.Key), item)
		case known:
			r.value(e.Value, e.Path, field)
		default:
			err := Unknown("key", e.Key, slices.Sorted(maps.Keys(fields)))
			r.problems = append(r.problems, &Error{File: r.File, Line: e.Line, Name: e.Path, Err: err})
		}
	}
}

// fieldsOf adds the fields of a struct by their names in YAML.
func fieldsOf(v reflect.Value, into map[string]reflect.Value) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			fieldsOf(v.Field(i), into)
		case name == "":
			into[strings.ToLower(f.Name)] = v.Field(i)
		case name != "-":
			into[name] = v.Field(i)
		}
	}
}

// fraction reports whether a number with a fraction was read as a whole one.
func fraction(n *yaml.Node, v reflect.Value) bool {
	if n.ShortTag() != "!!float" || !v.CanInt() && !v.CanUint() {
		return false
	}
	f, err := strconv.ParseFloat(n.Value, 64)
	return err != nil || f != math.Trunc(f)
}

// wanted completes the sentence "VALUE is …" for a value that is not of the type.
func wanted(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "no duration, as 250ms or 2s"
	case t.Kind() == reflect.Bool:
		return "neither true nor false"
	case t.Kind() == reflect.Uint64:
		return "no whole number from 0 to 2^64-1"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uintptr:
		return "no whole number that fits"
	}
	return "no number"
}
