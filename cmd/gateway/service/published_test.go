package service

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// publish runs a worker's publisher until stop is called.
func published(t *testing.T, bus wire.Bus, worker string, events []wire.Event) (stop func()) {
	t.Helper()
	p, err := publish.New(publish.Config{Source: wire.Source{Pool: "m/both", Worker: worker}}, bus, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(events); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("publisher: %v", err)
		}
	}
}

// over is a service that follows a bus.
func over(t *testing.T, cfg Config, bus wire.Bus) *Server {
	t.Helper()
	s, err := NewIndex(cfg, follow.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond}, bus, http.NotFoundHandler(), quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// until waits for a query to be answered with what says.
func until(t *testing.T, s *Server, query, says string) {
	t.Helper()
	comesTo(t, s, "POST", "/query", query, says)
}

// comesTo waits until a request is answered 200 with a body that says so.
func comesTo(t *testing.T, s *Server, method, path, query, says string) {
	t.Helper()
	deadline, tick := time.After(20*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for {
		body := must(t, s, 200, method, path, query)
		if strings.Contains(body, says) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s %s %s is answered %s, without %s", method, path, query, body, says)
		case <-tick.C:
		}
	}
}

// What publishers say of themselves comes over the bus. A service that restores
// hears it from them, and takes a sibling's word for those who are gone.
func TestPublishedIsIndexedAndRestored(t *testing.T) {
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	first := over(t, Config{}, bus)
	url := start(t, first)
	stored := []wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2}}
	stays, goes := published(t, bus, "stays", stored), published(t, bus, "goes", stored)
	defer stays()
	for _, id := range []string{"stays", "goes"} {
		must(t, first, 201, "POST", "/register", `{"id": "`+id+`", "model": "m", "block_size": 2, "kv_events": "nats"}`)
	}
	const query = `{"model": "m", "token_ids": [1, 2, 3, 4]}`
	const both = `{"worker":"goes","rank":0,"device":2,"host":0,"disk":0,"shared":0},{"worker":"stays","rank":0,"device":2,`
	until(t, first, query, both)
	goes()

	second := over(t, Config{RestoreFrom: []string{url}}, bus)
	start(t, second)
	until(t, second, query, both)
	must(t, second, 204, "POST", "/unregister", `{"id": "goes"}`)
	until(t, second, query, `"workers":[{"worker":"stays","rank":0,"device":2,`)
}

// Select chooses by what publishers say, and a restored one by what a sibling
// says of a publisher that is gone.
func TestSelectFollowsPublishers(t *testing.T) {
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	overBus := func(cfg Config) *Server {
		base := router.DefaultConfig()
		s, err := NewSelect(cfg, SelectConfig{
			Routers: map[pools.Role]router.Config{
				pools.Both: base, pools.Prefill: base.For(pools.Prefill), pools.Decode: base.For(pools.Decode),
			},
			Events: follow.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond},
		}, bus, http.NotFoundHandler(), quiet, prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := overBus(Config{})
	url := start(t, first)
	gone := published(t, bus, "warm", []wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2}})
	for _, id := range []string{"warm", "cold"} {
		must(t, first, 201, "POST", "/workers", `{"id": "`+id+`", "model": "m", "role": "both", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2, "kv_events": "nats"}`)
	}
	deadline, tick := time.After(20*time.Second), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	const scores, want = `{"model": "m", "token_ids": [1, 2, 3, 4]}`, `{"worker":"warm","rank":0,"device":2,`
	for !strings.Contains(must(t, first, 200, "POST", "/overlap_scores", scores), want) {
		select {
		case <-deadline:
			t.Fatal("events do not arrive")
		case <-tick.C:
		}
	}
	gone()
	second := overBus(Config{RestoreFrom: []string{url}})
	start(t, second)
	for _, s := range []*Server{first, second} {
		if got := must(t, s, 200, "POST", "/select", scores); !strings.Contains(got, `"worker":"warm"`) || !strings.Contains(got, `"overlap_blocks":2`) {
			t.Errorf("it chose %s", got)
		}
	}
}

// A dump that was cut short, or is none, is known for that; the service is ready
// nevertheless, with what had come.
func TestBrokenDumps(t *testing.T) {
	source := newIndex(t, Config{})
	must(t, source, 201, "POST", "/register", `{"id": "w1", "model": "m", "block_size": 2}`)
	must(t, source, 200, "POST", "/events", stored)
	whole := must(t, source, 200, "GET", "/dump", "")
	lines := strings.SplitAfter(strings.TrimSuffix(whole, "\n"), "\n")
	for i, tt := range []struct{ body, says string }{
		{whole, "<nil>"},
		{"", "unexpected EOF"},
		{"<html>", "no line of a dump"},
		{strings.Join(lines[:len(lines)-1], ""), "unexpected EOF"},
		{strings.Join(append(lines[:1:1], lines[2:]...), ""), "lines and says"},
		{strings.Replace(whole, `"version":1`, `"version":9`, 1), "version 9"},
		{strings.Replace(whole, `"index"`, `"select"`, 1), "no dump of gateway index"},
		{strings.Replace(whole, `"worker":"w1"`, `"worker":"w9"`, 1), "<nil>"},
	} {
		sibling := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, tt.body) }))
		s := newIndex(t, Config{})
		if _, err := s.restoreFrom(t.Context(), sibling.URL); !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%d: got %v, want %s", i, err, tt.says)
		}
		sibling.Close()
	}
}
