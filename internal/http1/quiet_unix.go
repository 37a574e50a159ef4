//go:build unix

package http1

import (
	"errors"
	"syscall"
)

// quiet reports whether a connection is open and has nothing to read. Go's sockets never block, so neither does this.
func quiet(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
}
