//go:build unix

package listen

import "syscall"

// descriptors is how many the process may have open.
func descriptors() (uint64, bool) {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0, false
	}
	return uint64(limit.Cur), true
}
