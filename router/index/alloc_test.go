//go:build !race

package index

import (
	"fmt"
	"testing"
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
	if got := testing.AllocsPerRun(50, func() { x.Match(p, &m) }); got != 0 {
		t.Errorf("Match allocates %v times", got)
	}
}
