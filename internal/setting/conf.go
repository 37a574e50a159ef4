package setting

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Error is one mistake in a file.
type FileError struct {
	File string
	// Line counts from 1; 0 means the file as a whole.
	Line int
	// Field is the path of the setting, as rules[2].status, or empty.
	Field string
	Err   error
}

// Error reads FILE:LINE FIELD: what is wrong.
func (e *FileError) Error() string {
	where := e.File
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	if e.Field != "" {
		where += " " + e.Field
	}
	return where + ": " + e.Err.Error()
}

// Unwrap returns what is wrong.
func (e *FileError) Unwrap() error { return e.Err }

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
		return nil, &FileError{File: file, Err: errors.New(strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, &FileError{File: file, Err: errors.New("has a second document; only one is allowed")}
	}
	if len(doc.Content) == 1 && !IsNull(doc.Content[0]) {
		d.Root = doc.Content[0]
	}
	return d, nil
}

// Errorf returns an error about the setting at path. Its line is that of the
// deepest part of path that the document has.
func (d *Document) Errorf(path, format string, args ...any) *FileError {
	e := &FileError{File: d.File, Field: path, Err: fmt.Errorf(format, args...)}
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

// at is an error about a node.
func (d *Document) at(n *yaml.Node, path, format string, args ...any) *FileError {
	return &FileError{File: d.File, Line: n.Line, Field: path, Err: fmt.Errorf(format, args...)}
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
		if key.Kind != yaml.ScalarNode {
			problems = append(problems, d.at(key, path, "a key is %s", Kind(key)))
			continue
		}
		e := Entry{Key: key.Value, Line: key.Line, Path: join(path, Clip(key.Value)), Value: n.Content[i+1]}
		name := strings.ReplaceAll(key.Value, "_", "-")
		if first := lines[name]; first != 0 {
			problems = append(problems, d.at(key, e.Path, "is given on line %d already", first))
			continue
		}
		lines[name] = key.Line
		entries = append(entries, e)
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
	return cmp.Or(map[yaml.Kind]string{
		yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.AliasNode: "a reference to another value",
	}[n.Kind], "a single value")
}

// IsNull reports whether a key has nothing after it, which is more often an oversight than a wish.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
