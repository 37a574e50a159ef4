//go:build unix

package http1

import (
	"errors"
	"syscall"
)

// Descriptors returns how many files and connections the process may have open; ok is false if unknown.
func Descriptors() (n uint64, ok bool) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0, false
	}
	return uint64(limit.Cur), true
}

// quiet reports whether a connection is open and has nothing to read. Go's sockets never block, so neither does this.
func quiet(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
}
