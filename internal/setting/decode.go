package setting

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Decode reads the document into the struct or list that dst points to, by its yaml tags. Settings that the document
// does not have stay as they are in dst. Unknown keys, keys given twice, values of the wrong kind, empty values and
// references are mistakes. The error joins all of them as [*Error]s.
func (d *Document) Decode(dst any) error {
	if d.Root == nil {
		return nil
	}
	r := &decoder{doc: d}
	r.value(d.Root, "", reflect.ValueOf(dst).Elem())
	return errors.Join(r.problems...)
}

// decoder collects the mistakes of one Decode.
type decoder struct {
	doc      *Document
	problems []error
}

func (r *decoder) refuse(n *yaml.Node, path, format string, args ...any) {
	r.problems = append(r.problems, r.doc.at(n, path, format, args...))
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
	case kind == reflect.Struct:
		r.mapping(n, path, v)
	case kind == reflect.Map:
		r.dictionary(n, path, v)
	case kind == reflect.Slice:
		r.list(n, path, v)
	case n.Kind != yaml.ScalarNode:
		r.refuse(n, path, "is %s, not a single value", Kind(n))
	case n.Decode(v.Addr().Interface()) != nil || fraction(n, v):
		r.refuse(n, path, "%s is %s", Quote(n.Value), wanted(v.Type()))
	}
}

// mapping reads n's keys into the fields of a struct.
func (r *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	fields := map[string]reflect.Value{}
	fieldsOf(v, fields)
	for _, e := range r.entries(n, path) {
		if field, ok := fields[e.Key]; ok {
			r.value(e.Value, e.Path, field)
			continue
		}
		var known []string
		for name := range fields {
			known = append(known, name)
		}
		slices.Sort(known)
		r.problems = append(r.problems, &FileError{File: r.doc.File, Line: e.Line, Field: e.Path, Err: Unknown("key", e.Key, known)})
	}
}

// dictionary reads n's keys into a map with keys of the user's choice.
func (r *decoder) dictionary(n *yaml.Node, path string, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, e := range r.entries(n, path) {
		item := reflect.New(v.Type().Elem()).Elem()
		r.value(e.Value, e.Path, item)
		v.SetMapIndex(reflect.ValueOf(e.Key), item)
	}
}

func (r *decoder) entries(n *yaml.Node, path string) []Entry {
	entries, err := r.doc.Entries(n, path)
	if err != nil {
		r.problems = append(r.problems, err)
	}
	return entries
}

func (r *decoder) list(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		r.refuse(n, path, "is %s, not a list", Kind(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		r.value(item, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
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

// wanted says what a value of the type is not.
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
	case t.Kind() == reflect.Float64:
		return "no number"
	}
	return "of another kind"
}
