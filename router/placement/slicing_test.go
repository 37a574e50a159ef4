package placement

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Slices go off for a while where engines lose more of them than they may, and not by one short prompt.
func TestSlicesGoOffWhereTheyAreLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		tokens int // of each of 64 slices
		lost   int
		on     bool
	}{
		{"none is lost", 4096, 0, true},
		{"few are lost", 4096, 80, true},
		{"many are lost", 4096, 200, false},
		{"all are lost", 4096, 4096, false},
		{"too few to say", 64, 64, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Slicing
			now := time.Unix(1, 0)
			for range 64 {
				s.Note(c.tokens, c.lost, now)
			}
			assert.Equal(t, c.on, s.On(now), "on")
			assert.True(t, s.On(now.Add(slicingPause)), "they are off after the pause")
		})
	}
}
