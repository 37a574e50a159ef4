package replay

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/setting"
)

// A count that is given is not cut short by the duration's default; a duration that is given counts, whichever of the
// two ends first.
func TestWhatEndsALoad(t *testing.T) {
	for _, tt := range []struct {
		requests, limit int
		duration        time.Duration // 0 leaves its default
		want            int           // requests; 0: as many as come in the duration, at 10/s
	}{
		{0, 0, 0, 0},
		{0, 0, 5 * time.Second, 0},
		{0, 900, 0, 900},
		{900, 0, 0, 900},
		{900, 700, 0, 700},
		{0, 900, 5 * time.Second, 0},
		{900, 0, 5 * time.Second, 0},
		{0, 3, 5 * time.Second, 3},
		{3, 0, 5 * time.Second, 3},
	} {
		s := setting.Default[LoadSettings]()
		w := &s.Workload
		w.Rate, w.Seed, w.Requests, w.Limit = 10, 1, tt.requests, tt.limit
		set := []string{"rate"}
		if tt.duration > 0 {
			w.Duration, set = tt.duration, append(set, "duration")
		}
		made, err := s.workload(func(name string) bool { return slices.Contains(set, name) })
		require.NoError(t, err)
		n := len(made.Requests)
		if mean := int(w.Duration.Seconds() * w.Rate); tt.want > 0 && n != tt.want || tt.want == 0 && (n < mean/2 || n > mean*2) {
			t.Errorf("%+v: %d requests", tt, n)
		}
	}
}
