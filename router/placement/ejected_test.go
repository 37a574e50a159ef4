package placement

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// An ejected worker serves only what no other one could: a pin, a retry after the others, the rest of a fleet whose others
// are down or may not be called.
func TestEjectedWorkers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		down    string
		blocked []string
		change  func(a *Ask)
		want    string
	}{
		{name: "others serve", want: "p2 d2 "},
		{name: "pins", change: func(a *Ask) { bind(a, "p1", "d1") }, want: "p1 d1 "},
		{name: "others were tried", change: func(a *Ask) { a.Exclude = []string{"p2", "d2"} }, want: "p1 d1 "},
		{name: "the other prefill worker is down", down: "p2", want: "p1 d2 "},
		{name: "the other decode worker may not be called", blocked: []string{"d2"}, want: "p2 d1 "},
	} {
		may := &permits{blocked: tt.blocked}
		p := newPlacer(t, true, may)
		p.Ejected = func(pool *pools.Pool) []string { return of(pool.Role, []string{"p1", "d1"}) }
		fleet := fleetOf(func(m *pools.Member) {
			if m.Worker.ID == tt.down {
				m.Status, m.DownUntil = pools.Down, start.Add(1<<40)
			}
		}, "p1", "p2", "d1", "d2")
		for range 8 {
			placed, err := p.Book(fleet, newAsk(Any, tt.change), nil, start)
			require.NoError(t, err, tt.name)
			assert.Equal(t, tt.want, ids(&placed), tt.name)
		}
	}
}
