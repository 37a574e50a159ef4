//go:build linux && !race

package loop

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reads and writes do not tell Go's scheduler that they may take long: they never wait. Each call that does tell it starts
// the scheduler's monitor, which then wakes every 50 µs or so for 4 ms and more.

func read(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}

func write(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	return int(n), errno
}

// writev writes pieces, of which none is empty.
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
