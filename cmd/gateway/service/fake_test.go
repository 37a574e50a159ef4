package service

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/pools"
)

var remoteQuiet = slog.New(slog.DiscardHandler)

// fakeIndex is an index that answers as it is set to.
type fakeIndex struct {
	*httptest.Server

	mu       sync.Mutex
	workers  map[string]Registration
	writes   []string                                     // registrations and removals, in order
	refuses  map[string]bool                              // workers that it does not take
	answer   func(w http.ResponseWriter, r *http.Request) // to a look-up; nil: every rank holds one block
	lists    func(w http.ResponseWriter, r *http.Request) // to GET /workers; nil: who is registered
	token    string                                       // that it asks for
	queries  int
	prompted []byte // body of the latest look-up
}

func newFake(t *testing.T) *fakeIndex {
	f := &fakeIndex{workers: map[string]Registration{}, refuses: map[string]bool{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeIndex) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	if f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token {
		f.mu.Unlock()
		http.Error(w, `{"error":{"message":"send a token"}}`, http.StatusUnauthorized)
		return
	}
	answer := f.serve(w, r, body)
	f.mu.Unlock()
	if answer != nil {
		answer(w, r)
	}
}

// serve is under the lock; what it returns is called without.
func (f *fakeIndex) serve(w http.ResponseWriter, r *http.Request, body []byte) func(http.ResponseWriter, *http.Request) {
	var reg Registration
	_ = json.Unmarshal(body, &reg)
	switch r.URL.Path {
	case "/workers":
		if f.lists != nil {
			return f.lists
		}
		list := struct {
			Workers []Registration `json:"workers"`
		}{}
		for _, reg := range f.workers {
			list.Workers = append(list.Workers, reg)
		}
		_ = json.NewEncoder(w).Encode(list)
	case "/register":
		f.writes = append(f.writes, "+"+reg.ID)
		if f.refuses[reg.ID] {
			http.Error(w, `{"error":{"message":"the service was started without --nats-url","param":"kv_events"}}`, http.StatusBadRequest)
			return nil
		}
		f.workers[reg.ID] = reg
	case "/unregister":
		f.writes = append(f.writes, "-"+reg.ID)
		if _, there := f.workers[reg.ID]; !there {
			http.Error(w, "", http.StatusNotFound)
			return nil
		}
		delete(f.workers, reg.ID)
		w.WriteHeader(http.StatusNoContent)
	case "/query_by_hash":
		f.queries++
		f.prompted = body
		if f.answer != nil {
			return f.answer
		}
		l := f.layout(r.URL.Query().Get("model"))
		held := make([]overlap.Tiers, l.Len())
		for i := range held {
			held[i] = overlap.Tiers{Known: true, Device: 1}
		}
		w.Header().Set("Content-Type", AnswerType)
		_, _ = w.Write(AppendAnswer(nil, Sum(l), held))
	}
	return nil
}

func (f *fakeIndex) layout(model string) *overlap.Layout {
	var ranks []overlap.Rank
	for _, reg := range f.workers {
		for rank := range reg.Ranks {
			if reg.Model == model {
				ranks = append(ranks, overlap.Rank{Worker: reg.ID, Rank: rank})
			}
		}
	}
	return overlap.NewLayout(ranks)
}

// set changes the fake.
func (f *fakeIndex) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// asked is how many look-ups have come.
func (f *fakeIndex) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.queries
}

// has is who is registered.
func (f *fakeIndex) has() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(f.workers)), " ")
}

// wrote is what was registered and removed, in order.
func (f *fakeIndex) wrote() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.writes, " ")
}

// worker is a record of one that publishes over NATS.
func worker(id string) pools.Worker {
	return pools.Worker{ID: id, Model: "m", Role: pools.Both, Engine: "sim", Address: "http://10.0.0.1:8000", BlockSize: 16, KVEvents: "nats"}
}

// running is a client that runs until the test ends, and its roster.
func running(t *testing.T, cfg ClientConfig, workers ...string) (*Client, *pools.Roster) {
	t.Helper()
	roster := pools.NewRoster(pools.Config{}, remoteQuiet)
	for _, id := range workers {
		require.NoError(t, roster.Put(worker(id)))
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	c, err := NewClient(cfg, roster, remoteQuiet, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-ended) })
	return c, roster
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, time.Millisecond, what)
}

// ranks waits until a client lists so many of its first index.
func ranks(t *testing.T, c *Client, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " ranks are listed"), func() bool { return c.States()[0].Ranks == n })
}
