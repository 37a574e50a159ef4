package terminal

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A terminal says its own size.
func TestSizeOfATerminal(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pty.Close()
	if err := unix.IoctlSetWinsize(int(pty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 97, Row: 31}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TERM", "xterm")
	if columns, rows := Size(pty); columns != 97 || rows != 31 || !Is(pty) || !Rewrites(pty) {
		t.Errorf("%d columns, %d rows", columns, rows)
	}
	t.Setenv("TERM", "dumb")
	if Rewrites(pty) || !Is(pty) {
		t.Error("a dumb terminal rewrites its lines")
	}
}
