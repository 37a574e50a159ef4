package metrics

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
)

// exposed is what a scrape shows, without help and types.
func exposed(t *testing.T, reg prometheus.Gatherer) string {
	t.Helper()
	scrape := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(scrape, httptest.NewRequest(http.MethodGet, "/", nil))
	return regexp.MustCompile("(?m)^#.*\n").ReplaceAllString(scrape.Body.String(), "")
}

func TestSetRegisters(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	set := In(prometheus.WrapRegistererWithPrefix("p_", reg))
	set.Counter("c_total", "A.", "of").WithLabelValues("x").Add(2)
	set.Gauge("g", "B.").WithLabelValues().Set(3)
	set.Histogram("h", "C.", []float64{1}).WithLabelValues().Observe(4)
	assert.Equal(t, "p_c_total{of=\"x\"} 2\np_g 3\np_h_bucket{le=\"1\"} 0\np_h_bucket{le=\"+Inf\"} 1\np_h_sum 4\np_h_count 1\n",
		exposed(t, reg))
	In(nil).Counter("c_total", "Counts, and is registered nowhere.").WithLabelValues().Inc()
}

// A scrape shows the values of its moment, and no series that was not given.
func TestSnapshotIsReadAtTheScrape(t *testing.T) {
	reg, state, seen := prometheus.NewPedanticRegistry(), "open", 0.
	group := In(reg).Snapshot()
	circuit := group.Gauge("circuit", "A.", "worker", "state")
	opened := group.Counter("opened_total", "B.", "worker")
	group.Read(func() {
		if state != "" {
			seen++
			circuit.OneOf([]string{"closed", "open"}, state, "w")
			opened.Set(seen, "w")
		}
	})
	for _, step := range []struct{ state, want string }{
		{"open", "circuit{state=\"closed\",worker=\"w\"} 0\ncircuit{state=\"open\",worker=\"w\"} 1\nopened_total{worker=\"w\"} 1\n"},
		{"closed", "circuit{state=\"closed\",worker=\"w\"} 1\ncircuit{state=\"open\",worker=\"w\"} 0\nopened_total{worker=\"w\"} 2\n"},
		{"", ""},
	} {
		state = step.state
		assert.Equal(t, step.want, exposed(t, reg), step.state)
	}
}

// Scrapes at the same time read one after the other.
func TestSnapshotOfManyScrapes(t *testing.T) {
	reg, reads := prometheus.NewPedanticRegistry(), 0
	group := In(reg).Snapshot()
	count := group.Counter("reads_total", "Reads.")
	group.Read(func() {
		reads++ // without a lock of its own
		count.Set(float64(reads))
	})
	var scrapes sync.WaitGroup
	for range 16 {
		scrapes.Go(func() {
			_, err := reg.Gather()
			assert.NoError(t, err)
		})
	}
	scrapes.Wait()
	assert.Equal(t, 16, reads)
}

// What is kept is made once for each key, by however many at the same time, until it is dropped.
func TestKeptIsMadeOnce(t *testing.T) {
	var kept Kept[int, *int]
	var getting sync.WaitGroup
	made := make([]int, 3) // guarded by kept: it makes one at a time
	get := func() {
		for key := range made {
			assert.Same(t, &made[key], kept.Get(key, func() *int { made[key]++; return &made[key] }))
		}
	}
	for range 16 {
		getting.Go(get)
	}
	getting.Wait()
	kept.Drop(func(key int) bool { return key == 1 })
	assert.Equal(t, 2, kept.Len())
	get()
	assert.Equal(t, []int{1, 2, 1}, made)
}
