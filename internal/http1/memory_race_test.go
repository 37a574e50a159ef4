//go:build race

package http1

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A reader without a reference reads no other's bytes unnoticed: what is released is overwritten.
func TestReleasedBytesAreOverwritten(t *testing.T) {
	b := Take(1 << 10)
	b.B = append(b.B, "a tenant's prompt"...)
	held, stale := append([]byte(nil), b.B...), b.B
	b.Retain()
	b.Release()
	assert.Equal(t, held, stale, "another holds it")
	b.Release()
	assert.Equal(t, "!!!!!!!!!!!!!!!!!", string(stale))
}
