package terminal

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A terminal reports its own size.
func TestSizeOfATerminal(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	defer pty.Close()
	require.NoError(t, unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 97, Row: 31}))
	t.Setenv("TERM", "xterm")
	columns, rows := Size(pty)
	assert.True(t, columns == 97 && rows == 31 && Is(pty) && Rewrites(pty), "%d columns, %d rows", columns, rows)
	t.Setenv("TERM", "dumb")
	assert.True(t, !Rewrites(pty) && Is(pty), "a dumb terminal rewrites its lines")
}
