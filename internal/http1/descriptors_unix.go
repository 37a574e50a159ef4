//go:build unix

package http1

import "syscall"

// Descriptors returns how many files and connections the process may have open; ok is false if unknown.
func Descriptors() (uint64, bool) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0, false
	}
	return uint64(limit.Cur), true
}
