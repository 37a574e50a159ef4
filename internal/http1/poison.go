//go:build !race

package http1

// poison does something under the race detector only.
func poison([]byte) {}
