//go:build !race

package index

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMatchDoesNotAllocate(t *testing.T) {
	x := New(Config{})
	p := chain(1, 300)
	for i := range 70 {
		o := x.Owner(fmt.Sprint("w", i), 0)
		x.Store(o, Device, p[:i*3])
		x.Place(o, Host, p[i*2:])
	}
	var m Matches
	assert.EqualValues(t, 0, testing.AllocsPerRun(50, func() { x.Match(p, &m) }), "Match allocates N times")
}
