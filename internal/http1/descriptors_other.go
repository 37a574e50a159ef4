//go:build !unix

package http1

// Descriptors is how many files and connections the process may have open: the system has no limit.
func Descriptors() (uint64, bool) { return 0, false }
