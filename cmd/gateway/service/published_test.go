package service

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// What publishers say of themselves comes over the bus, to a service that starts later too.
func TestPublishedIsIndexed(t *testing.T) {
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	stored := []wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2}}
	for _, worker := range []string{"stays", "goes"} {
		defer published(t, bus, worker, stored)()
	}
	s := over(t, Config{}, bus)
	start(t, s)
	for _, id := range []string{"stays", "goes"} {
		must(t, s, 201, "POST", "/register", `{"id": "`+id+`", "model": "m", "block_size": 2, "kv_events": "nats"}`)
	}
	const query = `{"model": "m", "token_ids": [1, 2, 3, 4]}`
	const both = `{"worker":"goes","rank":0,"device":2,"host":0,"disk":0,"shared":0},{"worker":"stays","rank":0,"device":2,`
	until(t, s, query, both)
	must(t, s, 204, "POST", "/unregister", `{"id": "goes"}`)
	until(t, s, query, `"workers":[{"worker":"stays","rank":0,"device":2,`)
}

// Select chooses by what publishers say.
func TestSelectFollowsPublishers(t *testing.T) {
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	base := router.DefaultConfig()
	s, err := NewSelect(Config{}, SelectConfig{
		Routers: map[pools.Role]router.Config{
			pools.Both: base, pools.Prefill: base.For(pools.Prefill), pools.Decode: base.For(pools.Decode),
		},
		Events: follow.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond},
	}, bus, http.NotFoundHandler(), quiet, prometheus.NewRegistry())
	require.NoError(t, err)
	start(t, s)
	defer published(t, bus, "warm", []wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2}})()
	for _, id := range []string{"warm", "cold"} {
		must(t, s, 201, "POST", "/workers", `{"id": "`+id+`", "model": "m", "role": "both", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2, "kv_events": "nats"}`)
	}
	const prompt = `{"model": "m", "token_ids": [1, 2, 3, 4]}`
	comesTo(t, s, "POST", "/overlap_scores", prompt, `{"worker":"warm","rank":0,"device":2,`)
	got := must(t, s, 200, "POST", "/select", prompt)
	assert.Contains(t, got, `"worker":"warm"`)
	assert.Contains(t, got, `"overlap_blocks":2`)
}
