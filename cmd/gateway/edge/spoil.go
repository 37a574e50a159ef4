//go:build !race

package edge

// spoil does something under the race detector only.
func spoil([]byte) {}
