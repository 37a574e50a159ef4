//go:build race

package http1

// poison overwrites memory before reuse: a stale reader shows in its output or as a race.
func poison(b []byte) {
	for i := range b {
		b[i] = '!'
	}
}
