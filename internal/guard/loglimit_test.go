package guard

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestLinesOfAKindAreBounded(t *testing.T) {
	l := LogLimiter{Burst: 10, Window: 10 * time.Second}
	start := time.Unix(1000, 0)
	written := 0
	for i := range 1000 {
		if _, ok := l.Allow("bad", start.Add(time.Duration(i)*time.Millisecond)); ok {
			written++
		}
	}
	assert.Equal(t, l.Burst, written, "lines in a second")
	_, ok := l.Allow("other", start.Add(time.Second))
	assert.True(t, ok, "one kind silenced another")
	suppressed, ok := l.Allow("bad", start.Add(l.Window))
	assert.True(t, ok, "the next window's first line")
	assert.Equal(t, 1000-l.Burst, suppressed)
	suppressed, _ = l.Allow("bad", start.Add(l.Window))
	assert.Zero(t, suppressed, "lines that were counted twice")
}

func TestKindsAreBounded(t *testing.T) {
	l := LogLimiter{Burst: 10, Window: 10 * time.Second}
	written := 0
	for i := range 10 * maxKinds {
		if _, ok := l.Allow(strconv.Itoa(i), time.Unix(1000, 0)); ok {
			written++
		}
	}
	assert.Equal(t, maxKinds+l.Burst, written, "lines")
	assert.Len(t, l.kinds, maxKinds+1)
}
