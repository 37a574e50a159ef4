package stack

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/pools"
)

func workerOf(id string, role pools.Role) pools.Worker {
	return pools.Worker{
		ID: id, Incarnation: "1", Model: "m", Role: role, Engine: "sim", Address: "http://127.0.0.1:1",
		BlockSize: 16, TotalKVBlocks: 10, DataParallelRanks: 1, ModelInput: "text",
	}
}

// TestFleetWithoutPrefill: decode workers alone are waited with at the start,
// when prefill workers may be about to join, and serve degraded after it; but
// never where they may not stand in.
func TestFleetWithoutPrefill(t *testing.T) {
	for _, c := range []struct {
		since    time.Duration
		fallback bool
		want     bool
		status   string
	}{
		{0, true, false, "unavailable"},
		{prefillPatience + time.Second, true, true, "degraded"},
		{prefillPatience + time.Second, false, false, "unavailable"},
	} {
		g := &Gateway{
			Roster: pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler)), began: time.Now().Add(-c.since),
			cfg: GatewayConfig{Flow: handoff.Config{DecodeFallback: c.fallback}},
		}
		require.NoError(t, g.Roster.Put(workerOf("d", pools.Decode)))
		ok, detail := g.Ready()
		if got := detail.(readiness).Status; ok != c.want || got != c.status {
			t.Errorf("%v after the start, fallback %v: %v, %q; want %v, %q", c.since, c.fallback, ok, got, c.want, c.status)
		}
	}
}

// TestModelsStateTheShortestContext: what /v1/models states is what admission goes by, in whichever order the workers are listed.
func TestModelsStateTheShortestContext(t *testing.T) {
	g := &Gateway{Roster: pools.NewRoster(pools.Config{}, slog.New(slog.DiscardHandler))}
	for id, context := range map[string]int{"a": 8192, "b": 4096, "c": 16384, "d": 0} {
		w := workerOf(id, pools.Both)
		w.ContextLength, w.ServedNames, w.Adapters = context, []string{"n"}, []string{"l"}
		require.NoError(t, g.Roster.Put(w))
	}
	all := g.Models()
	require.Len(t, all, 3)
	for _, m := range all {
		assert.Equal(t, 4096, m.MaxModelLen, "%s, want the shortest, 4096", m.ID)
	}
}

// TestForecastGoesByTheRole: a prefill worker's forecast is the prefill leg's, that of one that does both the decode leg's.
func TestForecastGoesByTheRole(t *testing.T) {
	f := forecast{
		prefill: func(w *pools.Worker, booked, uncached, _ int) (time.Duration, bool) {
			return time.Duration(booked+uncached) * time.Millisecond, w.ID == "p"
		},
		decode: func(w *pools.Worker, booked, uncached, _ int) (time.Duration, bool) {
			return time.Duration(booked+uncached) * 2 * time.Millisecond, w.ID == "b"
		},
	}
	for _, c := range []struct {
		id   string
		role pools.Role
		want time.Duration
		ok   bool
	}{
		{"p", pools.Prefill, 3 * time.Second, true},
		{"b", pools.Both, 6 * time.Second, true},
		{"new", pools.Prefill, 3 * time.Second, false},
		{"p", pools.Both, 6 * time.Second, false},
	} {
		w := workerOf(c.id, c.role)
		if d, ok := f.of(&w, 1000, 2000, 500); (d-c.want).Abs() > c.want/100 || ok != c.ok {
			t.Errorf("%s of role %s: %v, %v; want %v, %v", c.id, c.role, d, ok, c.want, c.ok)
		}
	}
}
