package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/terminal"
)

// TracesManual is the text of --help of `gateway traces`.
const TracesManual = "gateway traces, or gateway traces fetch FILE…: list published traces for load and simulate, or download some.\n" +
	"A FILE is where to put one, and its last part says which, as in bench/traces/conversation_trace.jsonl; with .gz behind it, it is\n" +
	"written compressed."

// Traces runs `gateway traces`: without words it lists the public traces, after "fetch" it downloads those that paths
// name by their last part. meter gets the progress.
func Traces(ctx context.Context, out, meter io.Writer, words ...string) error {
	if len(words) == 0 {
		return listTraces(out)
	}
	paths := words[1:]
	if words[0] != "fetch" || len(paths) == 0 {
		return setting.Errorf("usage", "want gateway traces, or gateway traces fetch FILE…")
	}
	for _, path := range paths {
		t, ok := PublicTraceAt(path)
		if !ok {
			var names []string
			for _, t := range PublicTraces() {
				names = append(names, t.File)
			}
			return setting.Errorf("FILE", "%s: its name is none of %s", path, strings.Join(names, ", "))
		}
		if err := fetchTo(ctx, out, meter, &t, path); err != nil {
			return err
		}
	}
	return nil
}

// listTraces writes which public traces there are, and how to get them by hand.
func listTraces(out io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Without a trace, load and simulate use %s.\n", BuiltInName)
	for _, t := range PublicTraces() {
		fmt.Fprintf(&b, "\n%s\n  %s\n  %.1f MB, %s, %s\n  %s\n  SHA-256 %s\n  gateway traces fetch bench/traces/%[1]s\n",
			t.File, t.About, float64(t.Bytes)/1e6, t.Licence, t.Project, t.URL, t.SHA256)
	}
	fmt.Fprint(&b, "\nWithout a network, put the files there by hand; the plans in bench/recipes read them in bench/traces.\n")
	_, err := out.Write(b.Bytes())
	return err
}

// fetchTo downloads a trace to a path, unless it is there.
func fetchTo(ctx context.Context, out, meter io.Writer, t *PublicTrace, path string) error {
	if have, err := os.ReadFile(path); err == nil {
		if err := t.Verify(have); err != nil {
			return fmt.Errorf("%s is there and is another file: %w", path, err)
		}
		fmt.Fprintf(out, "%s is there already\n", path)
		return nil
	}
	var read atomic.Int64
	stop := terminal.Show(meter, func() terminal.State {
		got := read.Load()
		return terminal.State{Share: float64(got) / float64(t.Bytes),
			Text: fmt.Sprintf("%.1f of %.1f MB of %s", float64(got)/1e6, float64(t.Bytes)/1e6, t.File)}
	})
	data, err := t.Fetch(ctx, http.DefaultClient, read.Store)
	stop()
	if err != nil {
		return fmt.Errorf("%w; by hand: get %s (SHA-256 %s) and put it at %s", err, t.URL, t.SHA256, path)
	}
	if strings.HasSuffix(path, ".gz") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(data); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		data = b.Bytes()
	}
	if err := place(path, data); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s, %s, from %s\n", path, t.About, t.Licence, t.Project)
	return nil
}

// place writes a file whole or not at all, with the folders above it.
func place(path string, data []byte) error {
	folder := filepath.Dir(path)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".fetching-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}
