package discovery

import (
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

	"github.com/tandem-pd/tandem/internal/setting"
)

// maxFileBytes is how long a workers file may be.
const maxFileBytes = 1 << 20

// ParseFile reads a workers file: a YAML list of mappings, each with the url of a worker and the options of
// [ParseEndpoint] as keys. No worker is written as []: an empty file may be one that is being written just now.
// Its error joins [*setting.Error]s; name is the file's.
func ParseFile(name string, data []byte) ([]Endpoint, error) {
	if len(data) > maxFileBytes {
		return nil, &setting.Error{File: name, Err: fmt.Errorf("is longer than %d bytes", maxFileBytes)}
	}
	doc, err := setting.Parse(name, data)
	switch {
	case err != nil:
		return nil, err
	case doc.Root == nil:
		return nil, doc.Errorf("", "is empty; no worker is written as []")
	case doc.Root.Kind != yaml.SequenceNode:
		return nil, doc.Errorf("", "is no list of workers, each as \"- url: http://HOST:PORT\"; no worker is written as []")
	}
	items := doc.Root.Content
	if len(items) > maxEndpoints {
		return nil, &setting.Error{File: name, Line: items[maxEndpoints].Line, Err: fmt.Errorf("%d workers can be listed", maxEndpoints)}
	}
	list := make([]Endpoint, 0, len(items))
	seen := newListed()
	var problems []error
	for _, item := range items {
		e, err := parseItem(doc, item)
		if err == nil {
			err = placed(doc, item.Line, e.repeats(seen))
		}
		problems = append(problems, err)
		list = append(list, e)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return list, nil
}

func parseItem(doc *setting.Document, item *yaml.Node) (e Endpoint, err error) {
	entries, err := doc.Entries(item, "")
	if err != nil {
		return e, err
	}
	lines := map[string]int{}
	for _, entry := range entries {
		name := strings.ReplaceAll(entry.Key, "_", "-")
		lines[name] = entry.Line
		switch {
		case entry.Value.Kind != yaml.ScalarNode || setting.IsNull(entry.Value):
			return e, &setting.Error{File: doc.File, Line: entry.Line, Name: entry.Path, Err: errors.New("takes a single value")}
		case name == "url":
			err = e.setURL(entry.Value.Value)
		default:
			err = e.set(name, entry.Value.Value)
		}
		if err != nil {
			return e, placed(doc, entry.Line, err)
		}
	}
	if lines["url"] == 0 {
		return e, &setting.Error{File: doc.File, Line: item.Line, Name: "url", Err: errors.New("is missing")}
	}
	return e, placed(doc, cmp.Or(lines["id"], lines["url"]), e.finish())
}

// placed gives the error of an endpoint its place in the file.
func placed(doc *setting.Document, line int, err error) error {
	if at, ok := errors.AsType[*EndpointError](err); ok {
		return &setting.Error{File: doc.File, Line: line, Name: at.Field, Err: errors.New(at.Problem)}
	}
	return err
}

// File follows a workers file. It reads the file itself each time, so that a rename over it, a swapped link and a
// write within the clock's resolution are all seen; a file that is broken, or gone, leaves the workers as they were.
type File struct {
	path  string
	every time.Duration
	apply func([]Endpoint)
	log   *slog.Logger

	mu      sync.Mutex        // guards all below; serializes whole reads
	applied [sha256.Size]byte // of the content that was applied last
	seen    [sha256.Size]byte // of the content that was seen last
	problem string            // that was logged last
}

// OpenFile reads the workers file at path and gives its workers to apply, then and after every change. every is how often
// Run looks, 1 s when zero. Its error joins [*setting.Error]s.
func OpenFile(path string, every time.Duration, apply func([]Endpoint), log *slog.Logger) (*File, error) {
	f := &File{path: path, every: cmp.Or(every, time.Second), apply: apply, log: log}
	return f, f.Reload()
}

// Reload reads the file now. Its error joins [*setting.Error]s, and the workers stay as they were then.
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
		if sum == f.applied {
			f.problem = ""
			return
		}
		err = f.take(data)
	}
	switch {
	case err == nil:
		f.problem = ""
		f.log.Info("workers file reloaded", "file", f.path)
	case err.Error() != f.problem:
		f.problem = err.Error()
		f.log.Error("workers file not applied; keeping the known workers", "error", err)
	}
}

// take parses the content and applies it.
func (f *File) take(data []byte) error {
	f.seen = sha256.Sum256(data)
	list, err := ParseFile(f.path, data)
	if err != nil {
		return err
	}
	f.applied = f.seen
	f.apply(list)
	return nil
}

func (f *File) read() ([]byte, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, &setting.Error{File: f.path, Err: err}
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, &setting.Error{File: f.path, Err: err}
	}
	return data, nil
}
