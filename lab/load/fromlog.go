package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/replay"
)

// fromLog writes a trace of a gateway's log, in place of a load.
func (s *Settings) fromLog(isSet func(string) bool, stdout, stderr io.Writer) error {
	w := &s.Workload
	for _, name := range []string{"trace", "rate"} {
		if isSet(name) {
			return setting.Errorf(name, "--from-log sends nothing")
		}
	}
	data, err := os.ReadFile(w.FromLog)
	if err != nil {
		return setting.Errorf("from-log", "%w", err)
	}
	t, err := replay.FromLog(bytes.NewReader(data), w.FromLog, w.Lenient)
	if err != nil {
		return setting.Errorf("from-log", "%w", err)
	}
	if err := writeTrace(t, w.TraceOut, stdout); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%d requests over %v; %d of them name their blocks of %d tokens; %d without an answer are left out, %d wrong lines passed over\n",
		t.Len(), t.Span().Round(time.Second), t.Named, t.BlockTokens, t.LeftOut, t.Skipped)
	if t.Named == 0 {
		fmt.Fprintln(stderr, "No prompt shares anything in this trace: the gateway ran without --log-requests=blocks.")
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
		return setting.Errorf("trace-out", "%w", err)
	}
	if err := errors.Join(t.Write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
