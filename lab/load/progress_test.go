package load

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/lab/replay"
)

func TestProgressBar(t *testing.T) {
	for _, c := range []struct {
		progress replay.Progress
		full     int
	}{
		{replay.Progress{}, 0},
		{replay.Progress{Total: 10, Sent: 7, Answered: 4, Failed: 1}, 12},
		{replay.Progress{Total: 10, Answered: 10}, 24},
	} {
		if bar := progressBar(c.progress); strings.Count(bar, "█") != c.full || strings.Count(bar, "·") != barWidth-c.full {
			t.Errorf("%+v: %s", c.progress, bar)
		}
	}
	var out bytes.Buffer
	if replay.IsTerminal(&out) {
		t.Error("a buffer is a terminal")
	}
	watch(&out, func() replay.Progress { return replay.Progress{} })() // ends what it started
}
