package service

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
)

// gathered are the values of a registry's metrics of one series.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// The shared index keeps within its budget and counts what went.
func TestIndexBudget(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := NewIndex(Config{IndexMaxBlocks: 50}, follow.Config{}, nil, http.NotFoundHandler(), quiet, reg)
	must(t, s, 201, "POST", "/register", `{"id": "w1", "model": "m", "block_size": 1}`)
	for i := range 20 {
		var hashes, ids []string
		for k := range 10 {
			hashes, ids = append(hashes, fmt.Sprint(1000*i+k+1)), append(ids, fmt.Sprint(100*i+k))
		}
		must(t, s, 200, "POST", "/events", `{"worker": "w1", "events": [{"type": "stored", "block_size": 1, "block_hashes": [`+
			strings.Join(hashes, ",")+`], "token_ids": [`+strings.Join(ids, ",")+`]}]}`)
		if held := gathered(t, reg)["component_router_index_held_blocks"]; held > 50 {
			t.Fatalf("%v pairs are held, the budget is 50", held)
		}
	}
	got := gathered(t, reg)
	if got["component_router_index_held_blocks"]+got["component_router_index_evicted_blocks_total"] != 200 ||
		got["component_router_index_evicted_blocks_total"] < 150 {
		t.Errorf("of 200 blocks of one worker: %v", got)
	}
}

// The router as a service has the same metrics, of what its workers publish.
func TestSelectIndexSize(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := newSelectOver(t, nil, reg, SelectConfig{})
	must(t, s, 201, "POST", "/workers", workerP)
	must(t, s, 201, "POST", "/workers", workerD)
	routers := s.backend.(*chooser).routers
	x := routers.Index("m", "prefill")
	x.Store(x.Owner("p", 0), 0, []uint64{1, 2, 3})
	d := routers.Index("m", "decode") // of what decode workers have, which a hand-off need not bring
	d.Store(d.Owner("d", 0), 0, []uint64{1, 2})
	got := gathered(t, reg)
	assert.EqualValues(t, 5, got["component_router_index_held_blocks"], "%v", got)
}
