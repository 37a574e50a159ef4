package router

import (
	"errors"
	"testing"

	"github.com/tandem-pd/tandem/pools"
)

// TestClaimedRanksAreLeft: what an earlier request waits for is as good as full to the others, and to them alone of
// its pool's workers.
func TestClaimedRanksAreLeft(t *testing.T) {
	gold := worker("gold", 100, 2, 0)
	gold.Taints, gold.Adapters = []string{"gold"}, []string{"sql"}
	pool := poolOf(pools.Decode, gold, worker("plain", 100, 2, 0))
	for _, c := range []struct {
		name  string
		claim Claim
		want  []string // of four requests in turn
	}{
		{"pinned", Claim{Role: pools.Decode, Pin: &Pin{Worker: "gold"}}, []string{"plain", "plain", "", ""}},
		{"tainted", Claim{Role: pools.Decode, Required: []string{"gold"}}, []string{"plain", "plain", "", ""}},
		{"with an adapter", Claim{Role: pools.Decode, Adapter: "sql"}, []string{"plain", "plain", "", ""}},
		{"but one tried", Claim{Role: pools.Decode, Exclude: []string{"plain"}}, []string{"plain", "plain", "", ""}},
		{"any", Claim{Role: pools.Decode}, []string{"", "", "", ""}},
		{"of another pool", Claim{Role: pools.Both, Pin: &Pin{Worker: "gold"}}, []string{"gold", "plain", "gold", "plain"}},
		{"of another rank", Claim{Role: pools.Decode, Pin: &Pin{Worker: "gold", Ranked: true, Rank: 1}},
			[]string{"gold", "plain", "gold", "plain"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRouter(t, inMode("round-robin").For(pools.Decode), nil)
			for i, want := range c.want {
				l, err := r.Reserve(pool, Request{ID: string(rune('a' + i)), ISL: 16, Ahead: []Claim{c.claim}}, noon)
				switch {
				case want == "" && !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrBusy):
					t.Errorf("request %d: %v, want that it waits", i, err)
				case want != "" && (err != nil || l.Worker.ID != want):
					t.Errorf("request %d: %v %v, want %s", i, l, err, want)
				}
			}
		})
	}
}
