//go:build linux && race

package http1

import (
	"errors"
	"syscall"
)

// Under the race detector a byte sent is to be seen as handed over to who reads it, as package net has it; package
// syscall sees to that.

func loopRead(fd int, p []byte) (int, syscall.Errno) {
	n, err := syscall.Read(fd, p)
	return max(0, n), errno(err)
}

func write(fd int, p []byte) (int, syscall.Errno) {
	n, err := syscall.Write(fd, p)
	return max(0, n), errno(err)
}

// writev writes a part of pieces, none of them empty.
func writev(fd int, pieces [][]byte) (sent int, _ syscall.Errno) {
	for _, p := range pieces {
		n, failed := write(fd, p)
		sent += n
		switch {
		case failed != 0 && sent == 0:
			return 0, failed
		case n < len(p):
			return sent, 0
		}
	}
	return sent, 0
}

func errno(err error) (no syscall.Errno) {
	errors.As(err, &no)
	return no
}
