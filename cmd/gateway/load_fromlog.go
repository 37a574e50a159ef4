package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/settings"
	"github.com/tandem-pd/tandem/internal/replay"
)

// fromLog writes a trace of a gateway's log, in place of a load.
func (s *loadSettings) fromLog(r *settings.Resolved, p process) error {
	w := &s.Workload
	for _, name := range []string{"trace", "rate"} {
		if r.IsSet(name) {
			return usageError{r.Refuse(name, errors.New("--from-log sends nothing"))}
		}
	}
	data, err := p.readFile(w.FromLog)
	if err != nil {
		return usageError{r.Refuse("from-log", err)}
	}
	t, err := replay.FromLog(bytes.NewReader(data), w.FromLog, w.Lenient)
	if err != nil {
		return usageError{err}
	}
	if err := writeTrace(t, w.TraceOut, p.stdout); err != nil {
		return err
	}
	fmt.Fprintf(p.stderr, "%d requests over %v; %d of them name their blocks of %d tokens; %d without an answer are left out, %d wrong lines passed over\n",
		t.Len(), t.Span().Round(time.Second), t.Named, t.BlockTokens, t.LeftOut, t.Skipped)
	if t.Named == 0 {
		fmt.Fprintln(p.stderr, "No prompt shares anything in this trace: the gateway ran without --log-blocks.")
	}
	return nil
}

// writeTrace writes to the file, or to stdout where there is no name.
func writeTrace(t *replay.LogTrace, name string, stdout io.Writer) error {
	if name == "" {
		return t.Write(stdout)
	}
	f, err := os.Create(name)
	if err != nil {
		return usageError{err}
	}
	if err := errors.Join(t.Write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
