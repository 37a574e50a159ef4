//go:build linux || darwin || freebsd || netbsd || openbsd

package terminal

import (
	"io"

	"golang.org/x/sys/unix"
)

// size returns the system's answer; ok is false where out is no terminal. The call goes through the file's own guard:
// Fd would make a file blocking.
func size(out io.Writer) (columns, rows int, ok bool) {
	f := file(out)
	if f == nil {
		return 0, 0, false
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	_ = conn.Control(func(fd uintptr) {
		if w, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil {
			columns, rows, ok = int(w.Col), int(w.Row), true
		}
	})
	return columns, rows, ok
}
