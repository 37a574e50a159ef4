package load

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// How often progress is shown: on a terminal, and in a log.
const (
	barEvery  = 200 * time.Millisecond
	lineEvery = 5 * time.Second
)

// watch shows how far a run is until stop is called: a bar where out is a
// terminal, else a line every few seconds.
func watch(out io.Writer, progress func() replay.Progress) (stop func()) {
	every, show := lineEvery, func() { fmt.Fprintln(out, progressLine(progress())) }
	terminal := replay.IsTerminal(out)
	if terminal {
		every = barEvery
		show = func() { fmt.Fprint(out, "\r\x1b[K"+progressBar(progress())) }
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				show()
			case <-done:
				if terminal {
					show()
					fmt.Fprintln(out)
				}
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func progressLine(p replay.Progress) string {
	return fmt.Sprintf("%d of %d sent, %d in flight, %d answered, %d failed, %d tokens", p.Sent, p.Total, p.InFlight, p.Answered, p.Failed, p.OutputTokens)
}

// barWidth is the length of the bar itself, in columns.
const barWidth = 24

// progressBar is short enough for a terminal of 80 columns.
func progressBar(p replay.Progress) string {
	full := 0
	if p.Total > 0 {
		full = barWidth * (p.Answered + p.Failed) / p.Total
	}
	full = min(full, barWidth)
	return fmt.Sprintf("[%s%s] %d/%d sent, %d in flight, %d ok, %d failed",
		strings.Repeat("█", full), strings.Repeat("·", barWidth-full), p.Sent, p.Total, p.InFlight, p.Answered, p.Failed)
}
