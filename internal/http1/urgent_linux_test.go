package http1

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A read stops at the mark of urgent data. What follows is read all the same, wherever the mark stands, and is what
// package net reads, which leaves out the marked byte.
func TestUrgentData(t *testing.T) {
	l := NewLoops()
	for _, script := range []string{ // the pieces sent, every second one as urgent data, whose last byte is marked
		"|!|abcd.", "ab|!|cd.", "abcd.|!", "|!", "ab|cd!|ef.", "|!||?|ab.", "a|!|b|?|c|;|d.", "ab|!||?|.", "a.|!|b.|?",
	} {
		plain, looped := readUrgent(t, nil, script), readUrgent(t, l, script)
		assert.True(t, plain == looped && strings.HasSuffix(plain, "more.end."),
			"%q: package net reads %q, the loop %q", script, plain, looped)
	}
}

// readUrgent is what the near end reads of a script that is sent twice, and of two more pieces.
func readUrgent(t *testing.T, l *Loops, script string) string {
	near, far := ends(t, l)
	near.SetReadDeadline(time.Now().Add(5 * time.Second))
	raw, err := far.SyscallConn()
	require.NoError(t, err)
	var got strings.Builder
	b := make([]byte, 64)
	for _, script := range []string{script, script, "more.", "end."} {
		for i, piece := range strings.Split(script, "|") {
			if piece == "" {
				continue
			}
			raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), []byte(piece), i%2*unix.MSG_OOB, nil) })
			require.NoError(t, err)
		}
		for want := strings.Count(script, "."); want > 0; {
			n, err := near.Read(b)
			got.Write(b[:n])
			if want -= strings.Count(string(b[:n]), "."); err != nil {
				return got.String() + " " + err.Error()
			}
		}
	}
	return got.String()
}
