//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package terminal

import (
	"io"
	"os"
)

// size returns no size on this system; a character device counts as a terminal.
func size(out io.Writer) (columns, rows int, ok bool) {
	f := file(out)
	if f == nil {
		return 0, 0, false
	}
	info, err := f.Stat()
	return 0, 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}
