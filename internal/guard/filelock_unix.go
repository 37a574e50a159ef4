//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package guard

import (
	"os"
	"syscall"
)

// lockFile takes a file's lock and reports whether it could; closing the file, or the process's end, gives it up.
func lockFile(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func isOurs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
