package discovery

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// MaxFileBytes is how long a workers file may be.
const MaxFileBytes = 1 << 20

// FileError is a mistake in a workers file.
type FileError struct {
	File  string
	Line  int    // 0 where no line is to blame
	Field string // the key; empty where none is to blame
	Err   error
}

func (e *FileError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", where, e.Line)
	}
	if e.Field != "" {
		where += ":" + e.Field
	}
	return where + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *FileError) Unwrap() error { return e.Err }

// ParseFile reads a workers file: a YAML list of mappings, each with the url of a worker and, beside it, the options
// of [ParseEndpoint] as keys. No worker is written as []: an empty file may be one that is being written just now.
// Its error is a [*FileError]; name is the file's.
func ParseFile(name string, data []byte) ([]Endpoint, error) {
	broken := func(line int, field string, err error) ([]Endpoint, error) {
		return nil, &FileError{File: name, Line: line, Field: field, Err: err}
	}
	if len(data) > MaxFileBytes {
		return broken(0, "", fmt.Errorf("is longer than %d bytes", MaxFileBytes))
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return broken(0, "", errors.New("is empty; no worker is written as []"))
	} else if err != nil {
		return broken(0, "", errors.New(strings.TrimPrefix(err.Error(), "yaml: ")))
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return broken(0, "", errors.New("holds a second document; one is read"))
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.SequenceNode {
		return broken(doc.Line, "", errors.New("is no list of workers, each as \"- url: http://HOST:PORT\"; no worker is written as []"))
	}
	items := doc.Content[0].Content
	if len(items) > MaxEndpoints {
		return broken(items[MaxEndpoints].Line, "", fmt.Errorf("%d workers can be listed", MaxEndpoints))
	}
	list := make([]Endpoint, 0, len(items))
	ids, addresses := map[string]bool{}, map[string][]string{}
	for _, item := range items {
		e, line, field, err := parseItem(item)
		if err == nil {
			line, field, err = item.Line, "", e.repeats(ids, addresses)
		}
		if err != nil {
			if at, ok := errors.AsType[*EndpointError](err); ok {
				field, err = cmp.Or(field, strings.Trim(at.Field, `"`)), errors.New(at.Problem)
			}
			return broken(line, field, err)
		}
		list = append(list, e)
	}
	return list, nil
}

// parseItem reads one worker. With an error go the line and the key to blame.
func parseItem(item *yaml.Node) (e Endpoint, line int, field string, err error) {
	if item.Kind != yaml.MappingNode {
		return e, item.Line, "", errors.New("a worker is a mapping with its url")
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(item.Content); i += 2 {
		key, value := item.Content[i], item.Content[i+1]
		name := strings.ReplaceAll(key.Value, "_", "-")
		switch {
		case key.Kind != yaml.ScalarNode:
			return e, key.Line, "", errors.New("a key is a word")
		case lines[name] != 0:
			return e, key.Line, clip(name), fmt.Errorf("is set on line %d already", lines[name])
		case value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null":
			return e, key.Line, clip(name), errors.New("takes a single value")
		}
		lines[name] = key.Line
		if name == "url" {
			err = e.setURL(value.Value)
		} else {
			err = e.set(name, value.Value)
		}
		if err != nil {
			return e, key.Line, "", err
		}
	}
	if lines["url"] == 0 {
		return e, item.Line, "url", errors.New("is missing")
	}
	return e, cmp.Or(lines["id"], lines["url"]), "", e.finish()
}

// File follows a workers file. It reads the file itself each time, so that a rename over it, a swapped link and a
// write within the clock's resolution are all seen; a file that is broken, or gone, leaves the workers as they were.
type File struct {
	path  string
	every time.Duration
	tell  func([]Endpoint)
	log   *slog.Logger

	mu      sync.Mutex        // guards all below; serializes whole reads
	told    [sha256.Size]byte // of the content that was told last
	seen    [sha256.Size]byte // of the content that was seen last
	problem string            // that was logged last
}

// OpenFile reads the workers file at path and tells tell its workers, then and after every change. every is how often
// Run looks, 1 s when zero. Its error is a [*FileError].
func OpenFile(path string, every time.Duration, tell func([]Endpoint), log *slog.Logger) (*File, error) {
	f := &File{path: path, every: cmp.Or(every, time.Second), tell: tell, log: log}
	return f, f.Reload()
}

// Reload reads the file now. Its error is a [*FileError], and the workers stay as they were then.
func (f *File) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := f.read()
	if err != nil {
		return err
	}
	return f.take(data)
}

// Run looks for changes until ctx ends, when it returns nil. A change counts when two looks in a row find the same, so
// that a file that is written in place is not read halfway.
func (f *File) Run(ctx context.Context) error {
	tick := time.NewTicker(f.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.look()
		}
	}
}

// look reads the file, and takes it when it has changed and come to rest.
func (f *File) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := f.read()
	if err == nil {
		sum := sha256.Sum256(data)
		rests := sum == f.seen
		f.seen = sum
		if !rests {
			return
		}
		if sum == f.told {
			f.problem = ""
			return
		}
		err = f.take(data)
	}
	switch {
	case err == nil:
		f.problem = ""
		f.log.Info("workers file read again", "file", f.path)
	case err.Error() != f.problem:
		f.problem = err.Error()
		f.log.Error("workers file not taken; going on with the workers known", "error", err)
	}
}

// take parses the content and tells it.
func (f *File) take(data []byte) error {
	f.seen = sha256.Sum256(data)
	list, err := ParseFile(f.path, data)
	if err != nil {
		return err
	}
	f.told = f.seen
	f.tell(list)
	return nil
}

func (f *File) read() ([]byte, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, &FileError{File: f.path, Err: err}
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, MaxFileBytes+1))
	if err != nil {
		return nil, &FileError{File: f.path, Err: err}
	}
	return data, nil
}
