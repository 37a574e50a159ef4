//go:build linux && !race

package http1

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reads and writes bypass Go's scheduler: they never wait. A call that notifies the scheduler starts its monitor, which
// then wakes every 50 µs or so for 4 ms and more.

func loopRead(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}

func write(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}

// writev writes pieces, none of them empty.
func writev(fd int, pieces [][]byte) (int, syscall.Errno) {
	var few [8]unix.Iovec
	list := few[:0]
	for _, p := range pieces {
		piece := unix.Iovec{Base: &p[0]}
		piece.SetLen(len(p))
		list = append(list, piece)
	}
	n, _, errno := syscall.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)))
	return int(n), errno
}
