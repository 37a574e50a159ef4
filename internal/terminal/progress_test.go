package terminal

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestBarAndLine(t *testing.T) {
	for _, c := range []struct {
		state State
		taken time.Duration
		full  int
		line  string
	}{
		{State{Text: "x"}, time.Second, 0, " 0 %, 1s: x"},
		{State{Share: 0.005, Text: "x"}, 2 * time.Second, 0, " 0 %, 2s: x"}, // too early
		{State{Share: 0.25, Text: "x"}, 15 * time.Second, 5, "25 %, 15s, about 45s left: x"},
		{State{Share: 0.5, Left: 2 * time.Minute, Text: "x"}, 65 * time.Second, 10, "50 %, 1m05s, about 2m00s left: x"},
		{State{Share: 1, Text: "x"}, 2 * time.Hour, 20, "100 %, 2h00m, about 0s left: x"},
		{State{Share: 3, Text: "x"}, time.Minute, 20, "100 %, 1m00s, about 0s left: x"},
		{State{Share: -1, Text: "x"}, time.Minute, 0, "1m00s: x"},
	} {
		bar := c.state.Bar(c.taken)
		assert.True(t, strings.Count(bar, "█") == c.full && strings.Count(bar, "█")+strings.Count(bar, "░") == barWidth,
			"%+v: %s", c.state, bar)
		assert.Equal(t, c.line, c.state.Line(c.taken), "%+v", c.state)
	}
}

// In a log nothing is written of a job that is over at once; of a longer one a line after two seconds, and then every
// few. Nothing is written after stop.
func TestShowInALog(t *testing.T) {
	for lasts, want := range map[time.Duration]string{
		time.Second: "", 11 * time.Second: "10 %, 2s, about 18s left: job\n35 %, 7s, about 13s left: job\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			began := time.Now()
			stop := Show(&out, func() State { return State{Share: time.Since(began).Seconds() / 20, Text: "job"} })
			time.Sleep(lasts)
			stop()
			time.Sleep(time.Minute)
			assert.Equal(t, want, out.String())
		})
	}
}

func TestReaderReports(t *testing.T) {
	seen := int64(0)
	data, err := io.ReadAll(NewReader(strings.NewReader("12345"), func(read int64) { seen = read }))
	assert.True(t, err == nil && string(data) == "12345" && seen == 5, "%q, %v, reported %d", data, err, seen)
}
