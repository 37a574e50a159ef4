//go:build race

package edge

// spoil overwrites memory before reuse: a stale reader shows in its output or as a race.
func spoil(b []byte) {
	for i := range b {
		b[i] = '!'
	}
}
