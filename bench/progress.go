package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// progress tells how far the measurement is: on a terminal in one line, which
// it rewrites, elsewhere in a line whenever there is something new.
type progress struct {
	w     io.Writer
	line  bool // rewrite one line
	begun time.Time
	whole time.Duration // estimated
	done  time.Duration // of it
	last  string
}

func newProgress(w io.Writer, whole time.Duration) *progress {
	p := &progress{w: w, begun: time.Now(), whole: whole}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.line = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// step reports the present step.
func (p *progress) step(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	percent := min(99, int(100*p.done/max(1, p.whole)))
	switch {
	case p.line:
		fmt.Fprintf(p.w, "\r\x1b[K%3d %% %4.0f s  %s", percent, time.Since(p.begun).Seconds(), text)
	case text != p.last:
		fmt.Fprintf(p.w, "%3d %% %4.0f s  %s\n", percent, time.Since(p.begun).Seconds(), text)
	}
	p.last = text
}

// passed counts d of the estimate as done.
func (p *progress) passed(d time.Duration) { p.done += d }

// pass waits, and counts the time as done.
func (p *progress) pass(ctx context.Context, d time.Duration) error {
	defer p.passed(d)
	return wait(ctx, d)
}

// wait waits for so long or until the run is stopped.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *progress) close() {
	if p.line {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
