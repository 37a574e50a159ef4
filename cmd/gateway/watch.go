package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/internal/terminal"
)

// watchEvery is the refresh interval of `workers list --watch`.
const watchEvery = time.Second

// watch shows a changing text: in place on a terminal, else each change with its time.
type watch struct {
	out      io.Writer
	rewrites bool
	last     string
}

// run refreshes until ctx ends, which is no error. It returns an error of the first look, and of a gateway that
// refuses; others are shown, since a gateway may restart.
func (w *watch) run(ctx context.Context, look func(context.Context) (string, error)) error {
	ticks := time.NewTicker(watchEvery)
	defer ticks.Stop()
	for first := true; ; first = false {
		text, err := look(ctx)
		_, refused := errors.AsType[*refusal](err)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || refused):
			return err
		case err != nil:
			text = fmt.Sprintf("%v\nretrying every second; Ctrl-C ends this\n", err)
		}
		if err := w.show(text, time.Now()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// columns returns the width of a text: a terminal's, or unlimited.
func (w *watch) columns() int {
	if !w.rewrites {
		return math.MaxInt
	}
	columns, _ := terminal.Size(w.out)
	return columns
}

// Terminal codes: to the upper left, clear the rest of the line, clear the rest of the screen.
const (
	toTop     = "\x1b[H"
	emptyLine = "\x1b[K"
	emptyRest = "\x1b[J"
)

// show shows the text as of now. It overwrites a terminal from the top, without flicker; the last line counts what
// does not fit.
func (w *watch) show(text string, now time.Time) error {
	if !w.rewrites {
		if text == w.last {
			return nil
		}
		w.last = text
		_, err := fmt.Fprintf(w.out, "%s\n%s\n", now.Format(time.TimeOnly), text)
		return err
	}
	columns, rows := terminal.Size(w.out)
	if w.last == "" {
		columns = max(columns, 1)
		fmt.Fprint(w.out, toTop, emptyRest)
	}
	w.last = text
	_, err := io.WriteString(w.out, toTop+screen(text, now, columns, rows)+emptyRest)
	return err
}

// screen cuts the text to a terminal's size, with a code in each line to clear its rest. rows below 4 are unknown.
func screen(text string, now time.Time, columns, rows int) string {
	lines := append([]string{now.Format(time.TimeOnly) + " · every second · Ctrl-C ends"},
		strings.Split(strings.TrimRight(text, "\n"), "\n")...)
	if room := rows - 1; rows >= 4 && len(lines) > room {
		lines = append(lines[:room-1:room-1], fmt.Sprintf("… and %d lines more", len(lines)-room+1))
	}
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(terminal.Cut(line, columns) + emptyLine + "\r\n")
	}
	return b.String()
}
