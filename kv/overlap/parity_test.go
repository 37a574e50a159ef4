package overlap

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A window is given as the comparisons in their order, w a wrong one, and what
// they do to the mark as the place of each change.
func TestWindow(t *testing.T) {
	r := strings.Repeat
	tests := []struct {
		name, compared string
		changes        []int // counted from 1
		marked         bool
	}{
		{"all right", r(".", 200), nil, false},
		{"too few to tell", "wwwwwww", nil, false},
		{"the first eight", "wwwwwwww", []int{8}, true},
		{"a quarter is not above a quarter", r("...w", 50), nil, false},
		{"three of the first eight", "w.w.w...", []int{8}, true},
		{"nine of a window", r(".", 32) + r("w", 9), []int{41}, true},
		{"eight of a window", r(".", 32) + r("w", 8) + r(".", 100), nil, false},
		{"right again needs a window of its own", r("w", 8) + r(".", 31), []int{8}, true},
		{"right again", r("w", 8) + r(".", 32), []int{8, 40}, false},
		{"four of a window are half the share", r("w", 8) + r("w.......", 20), []int{8}, true},
		{"three are below", r("w", 8) + r("w", 3) + r(".", 29), []int{8, 40}, false},
		{"it slides until it is right", r("w", 8) + r("w", 32) + r(".", 29), []int{8, 69}, false},
		{"between the two shares it stays as it was", r("w", 8) + r("w....", 40), []int{8}, true},
		{"the same from the other side", r(".", 32) + r("w....", 40), nil, false},
		{"once more", r("w", 8) + r(".", 32) + r("w", 9), []int{8, 40, 49}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var w window
			var changes []int
			for i, c := range tt.compared {
				changed, bad, of := w.add(c == 'w')
				if changed {
					changes = append(changes, i+1)
				}
				latest := tt.compared[max(0, i+1-of) : i+1]
				assert.Equal(t, strings.Count(latest, "w"), bad, "after %d wrong of %d", i+1, of)
			}
			require.True(t, w.marked == tt.marked && len(changes) == len(tt.changes),
				"marked %v, changed at %v; want %v and %v", w.marked, changes, tt.marked, tt.changes)
			for i := range changes {
				assert.Equal(t, tt.changes[i], changes[i], "changed at %v, want %v", changes, tt.changes)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name        string
		isl         int
		least, most int // believed
		cached      int // said
		block       int // the engine's
		came, went  uint64
		want        Verdict
	}{
		{"nothing was and nothing was believed", 1000, 0, 0, 0, 16, 0, 0, Unsampled},
		{"as believed", 1000, 992, 992, 992, 16, 0, 0, Right},
		{"the last block is always computed", 64, 64, 64, 48, 16, 0, 0, Right},
		{"and one more with speculative decoding", 64, 64, 64, 32, 16, 0, 0, Right},
		{"two more", 64, 64, 64, 16, 16, 0, 0, Over},
		{"a tenth of the prompt", 10_000, 8000, 8000, 7000, 16, 0, 0, Right},
		{"more than that", 10_000, 8000, 8000, 6999, 16, 0, 0, Over},
		{"all of it", 10_000, 8000, 8000, 0, 16, 0, 0, Over},
		{"more was there", 10_000, 0, 0, 8000, 16, 0, 0, Under},
		{"a tenth more", 10_000, 8000, 8000, 9000, 16, 0, 0, Right},
		{"the engine's blocks are larger", 640, 512, 512, 256, 128, 0, 0, Right},
		{"not so large", 640, 512, 512, 256, 64, 0, 0, Over},
		{"from a slower tier", 10_000, 0, 8000, 8000, 16, 0, 0, Right},
		{"not from it, for engines differ", 10_000, 4000, 8000, 4000, 16, 0, 0, Right},
		{"it was evicted on the way", 10_000, 8000, 8000, 0, 16, 0, 500, Moved},
		{"not so much was", 10_000, 8000, 8000, 0, 16, 0, 437, Over},
		{"a sibling brought it", 10_000, 0, 0, 8000, 16, 500, 0, Moved},
		{"what came does not excuse what is missing", 10_000, 8000, 8000, 0, 16, 5000, 0, Over},
		{"what went does not excuse what is there", 10_000, 0, 0, 8000, 16, 0, 5000, Under},
	}
	for _, tt := range tests {
		b := ExpectedHit{held: true, isl: tt.isl, block: 16, least: tt.least, most: tt.most}
		assert.Equal(t, tt.want, b.judge(tt.cached, tt.block, tt.came, tt.went), "%s", tt.name)
	}
}
