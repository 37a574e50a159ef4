package terminal

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// State is how far a job is.
type State struct {
	// Share is the finished part of the job, from 0 to 1. Below 0 it is unknown, and no time left is shown.
	Share float64
	// Left is the time that remains, if known; 0 estimates it from Share.
	Left time.Duration
	// Text describes the present step, in a few words.
	Text string
}

// When progress is shown: not in the first moments of a job, which last longer in a log; then so often on a terminal,
// and so often in a log.
const (
	quiet     = time.Second
	firstLine = 2 * time.Second
	barEvery  = 200 * time.Millisecond
	lineEvery = 5 * time.Second
)

// Show shows the job's state on out until stop is called, which erases a bar and waits until nothing more is written.
// state is called from another goroutine.
func Show(out io.Writer, state func() State) (stop func()) {
	first, bar := firstLine, Rewrites(out)
	if bar {
		first = barEvery
	}
	began, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(first)
		defer ticks.Stop()
		shown := false
		for {
			select {
			case <-ticks.C:
			case <-done:
				if shown && bar {
					fmt.Fprint(out, erase)
				}
				return
			}
			taken := time.Since(began)
			switch {
			case taken < quiet:
			case bar:
				columns, _ := Size(out)
				fmt.Fprint(out, erase+Cut(state().Bar(taken), columns-1))
				shown = true
			default:
				fmt.Fprintln(out, state().Line(taken))
				ticks.Reset(lineEvery)
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// erase empties the line of a terminal.
const erase = "\r\x1b[K"

// barWidth is the length of the bar itself, in columns.
const barWidth = 20

// Bar is the state after so long, for a terminal of 80 columns.
func (s State) Bar(taken time.Duration) string {
	full := int(barWidth * min(1, max(0, s.Share)))
	return fmt.Sprintf("%s%s %s · %s", strings.Repeat("█", full), strings.Repeat("░", barWidth-full), s.when(taken), s.Text)
}

// Line is the state after so long, for a log.
func (s State) Line(taken time.Duration) string { return s.when(taken) + ": " + s.Text }

// when is how much is done, and how long it has taken and still takes.
func (s State) when(taken time.Duration) string {
	left, known := s.remaining(taken)
	switch {
	case s.Share < 0:
		return short(taken)
	case !known:
		return fmt.Sprintf("%2.0f %%, %s", 100*s.Share, short(taken))
	}
	return fmt.Sprintf("%2.0f %%, %s, about %s left", 100*min(1, s.Share), short(taken), short(left))
}

// least is the lowest share from which the time left is estimated.
const least = 0.01

// remaining is how long the job still takes.
func (s State) remaining(taken time.Duration) (left time.Duration, known bool) {
	switch {
	case s.Left > 0:
		return s.Left, true
	case s.Share < least:
		return 0, false
	}
	seconds := taken.Seconds() * (1 - min(1, s.Share)) / s.Share
	return time.Duration(math.Round(seconds)) * time.Second, true
}

// short formats a duration in whole seconds, as 42s or 3m05s.
func short(d time.Duration) string {
	seconds := int(d.Round(time.Second) / time.Second)
	switch {
	case seconds < 60:
		return fmt.Sprintf("%ds", seconds)
	case seconds < 3600:
		return fmt.Sprintf("%dm%02ds", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%dh%02dm", seconds/3600, seconds/60%60)
}

// Reader counts the bytes read of a download, for Show.
type Reader struct {
	io.Reader
	report func(read int64)
	read   int64
}

// NewReader reports to report how many bytes were read in all, after every read.
func NewReader(r io.Reader, report func(read int64)) *Reader {
	return &Reader{Reader: r, report: report}
}

// Read reads, and reports.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.read += int64(n)
	r.report(r.read)
	return n, err
}
