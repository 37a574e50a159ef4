package queue

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stretchr/testify/assert"
)

// TestEveryOrder walks the registry: an order is tested by existing.
func TestEveryOrder(t *testing.T) {
	assert.GreaterOrEqual(t, len(Orders()), 3)
	for _, name := range Orders() {
		t.Run(name, func(t *testing.T) { testOrder(t, name) })
	}
}

func testOrder(t *testing.T, name string) {
	if source, err := os.ReadFile("order_" + name + ".go"); err != nil || !strings.Contains(string(source), `register("`+name+`"`) {
		t.Errorf("order_%s.go does not register it: %v", name, err)
	}
	assert.True(t, Help(name) != "" && !strings.Contains(Help(name), "\n"), "its help is not one line: %q", Help(name))
	o, err := newOrder(name, start)
	require.NoError(t, err)
	plain := Item{Arrival: start.Add(time.Second), ISL: 100, Uncached: 50}
	key := func(change func(it *Item)) float64 {
		it := plain
		change(&it)
		return o.Key(it, it.Arrival)
	}
	unchanged := key(func(*Item) {})
	for what, change := range map[string]func(it *Item){
		"negative priority": func(it *Item) { it.Priority = -5 },
		"NaN priority":      func(it *Item) { it.Priority = math.NaN() },
		"its id":            func(it *Item) { it.ID = "x" },
		"strict priority":   func(it *Item) { it.Strict = 7 },
		"being a retry":     func(it *Item) { it.Retry = true },
		"its bytes":         func(it *Item) { it.Bytes = 1 << 30 },
	} {
		assert.Equal(t, unchanged, key(change), "%s changes the key from N to", what)
	}
	got := key(func(it *Item) { it.Priority = 1 })
	assert.True(t, got < unchanged, "a point of priority brings the key from %v to %v, not down", unchanged, got)
	for what, change := range map[string]func(it *Item){
		"infinite priority": func(it *Item) { it.Priority = math.Inf(1) },
		"nothing to do":     func(it *Item) { it.ISL, it.Uncached = 0, 0 },
		"absurd tokens":     func(it *Item) { it.Uncached = math.MinInt },
		"the year 1":        func(it *Item) { it.Arrival = time.Time{} },
		"the year 9999":     func(it *Item) { it.Arrival = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		assert.False(t, math.IsNaN(key(change)), "%s has no key", what)
	}
	later := o.Key(plain, start.Add(time.Hour))
	assert.True(t, o.Ages() || later == unchanged,
		"it does not age, and yet its key goes from %v to %v in an hour", unchanged, later)
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, func() { later = o.Key(plain, start) }), "a key takes N allocations")
}

// TestScores has the worked numbers of each formula; a key is the score negated.
func TestScores(t *testing.T) {
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for _, test := range []struct {
		order string
		item  Item
		score float64
	}{
		{"fcfs", Item{Arrival: at(12.5)}, -12.5},
		{"fcfs", Item{Arrival: at(12.5), Priority: 2}, -10.5},
		{"lcfs", Item{Arrival: at(12.5)}, 12.5},
		{"lcfs", Item{Arrival: at(12.5), Priority: 2}, 14.5},
		{"wspt", Item{ISL: 1000, Uncached: 250}, 1.0 / 250},
		{"wspt", Item{ISL: 1000, Uncached: 250, Priority: 4}, 5.0 / 250},
		{"wspt", Item{ISL: 1000, Uncached: 0, Priority: 4}, 5},
		{"hrrn", Item{Uncached: 250, Arrival: at(99)}, -250},
		{"hrrn", Item{Uncached: 250, Arrival: at(94)}, -125},
		{"hrrn", Item{Uncached: 250, Arrival: at(94), Priority: 4}, -25},
		{"hrrn", Item{Uncached: 0, Arrival: at(94)}, -.5},
	} {
		o, err := newOrder(test.order, start)
		require.NoError(t, err)
		assert.Equal(t, test.score, -o.Key(test.item, at(99)), "%s of %+v", test.order, test.item)
	}
}

func TestConfigNamesTheFlag(t *testing.T) {
	require.NoError(t, DefaultConfig().Validate())
	for flag, spoil := range map[string]func(c *Config){
		"router-queue-policy": func(c *Config) { c.Policy = "FCFS" },
		"queue-limit":         func(c *Config) { c.Limit = -1 },
		"queue-timeout":       func(c *Config) { c.Timeout = 0 },
		"queue.Config.Bytes":  func(c *Config) { c.Bytes = 0 },
	} {
		cfg := DefaultConfig()
		spoil(&cfg)
		assert.ErrorContains(t, cfg.Validate(), flag+": ")
		_, err := New[struct{}, struct{}](cfg, nil, nil)
		assert.ErrorContains(t, err, flag+": ")
	}
	_, err := newOrder("FCFS", start)
	assert.ErrorContains(t, err, "fcfs, hrrn, lcfs, wspt")
}
