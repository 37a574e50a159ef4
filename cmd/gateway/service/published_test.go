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
)

// published runs a worker's publisher until stop is called.
func published(t *testing.T, bus wire.Bus, worker string) (stop func()) {
	t.Helper()
	p, err := publish.New(publish.Config{Source: wire.Source{Pool: "m/both", Worker: worker}}, bus, quiet)
	require.NoError(t, err)
	require.NoError(t, p.Publish([]wire.Event{twoBlocks}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return func() { cancel(); assert.NoError(t, <-ended) }
}

// twoBlocks are what scoresOf asks for.
var twoBlocks = wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2}

// soon has events asked for again soon.
var soon = follow.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond}

// over is a running index that follows a bus.
func over(t *testing.T, bus wire.Bus) *Server {
	t.Helper()
	s, err := NewIndex(Config{}, soon, bus, http.NotFoundHandler(), quiet, prometheus.NewRegistry())
	require.NoError(t, err)
	start(t, s)
	return s
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
	for _, worker := range []string{"stays", "goes"} {
		defer published(t, bus, worker)()
	}
	s := over(t, bus)
	for _, id := range []string{"stays", "goes"} {
		must(t, s, 201, "POST", "/register", `{"id": "`+id+`", "model": "m", "block_size": 2, "kv_events": "nats"}`)
	}
	const both = `{"worker":"goes","rank":0,"device":2,"host":0,"disk":0,"shared":0},{"worker":"stays","rank":0,"device":2,`
	comesTo(t, s, "POST", "/query", scoresOf, both)
	must(t, s, 204, "POST", "/unregister", `{"id": "goes"}`)
	comesTo(t, s, "POST", "/query", scoresOf, `"workers":[{"worker":"stays","rank":0,"device":2,`)
}

// Select chooses by what publishers say.
func TestSelectFollowsPublishers(t *testing.T) {
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	s := following(t, bus)
	defer published(t, bus, "warm")()
	for _, id := range []string{"warm", "cold"} {
		must(t, s, 201, "POST", "/workers", strings.Replace(engineSays, `"w"`, `"`+id+`"`, 1)+`"nats"}`)
	}
	comesTo(t, s, "POST", "/overlap_scores", scoresOf, `{"worker":"warm","rank":0,"device":2,`)
	got := must(t, s, 200, "POST", "/select", scoresOf)
	assert.Contains(t, got, `"worker":"warm"`)
	assert.Contains(t, got, `"overlap_blocks":2`)
}
