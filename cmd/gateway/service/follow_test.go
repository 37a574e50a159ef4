package service

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// following is a `gateway select` that follows events, with a bus or, where it is
// nil, over ZMQ alone.
func following(t *testing.T, bus wire.Bus) *Server {
	t.Helper()
	s := newSelectOver(t, bus, prometheus.NewRegistry(), SelectConfig{Events: soon})
	start(t, s)
	return s
}

// zmqEngine publishes one batch over ZMQ, under the number 0, to each subscriber, until the test ends.
func zmqEngine(t *testing.T) (endpoint string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	batch := wire.VLLM.Append(nil, &wire.Batch{TS: 1, Events: []wire.Event{twoBlocks}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		zmq.Serve(ctx, ln, zmq.PUB, zmq.Options{}, func(_ context.Context, c *zmq.Conn) {
			for {
				m, err := c.Read()
				if err != nil {
					return
				}
				if m.Command == "SUBSCRIBE" && c.Write(nil, make([]byte, 8), batch) != nil {
					return
				}
			}
		}, func(error) {})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return "tcp://" + ln.Addr().String()
}

const (
	scoresOf   = `{"model": "m", "token_ids": [1, 2, 3, 4]}`
	engineSays = `{"id": "w", "model": "m", "role": "both", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2, "kv_events": `
)

// Workers whose events do not come, because nobody publishes at the endpoint or
// there is no NATS, are predicted.
func TestSelectPredictsSilentWorkers(t *testing.T) {
	bus := testkit.NewBus()
	t.Cleanup(bus.Close)
	for _, tt := range []struct {
		name, record string
		bus          wire.Bus
	}{
		{"silent over ZMQ, with a bus", engineSays + `"zmq", "kv_events_endpoint": "tcp://127.0.0.1:1"}`, bus},
		{"silent over ZMQ", engineSays + `"zmq", "kv_events_endpoint": "tcp://127.0.0.1:1"}`, nil},
		{"without a bus", engineSays + `"nats"}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := following(t, tt.bus)
			must(t, s, 201, "POST", "/workers", tt.record)
			must(t, s, 201, "POST", "/select_and_reserve", `{"id": "r", "model": "m", "token_ids": [1, 2, 3, 4]}`)
			assert.Contains(t, must(t, s, 200, "POST", "/overlap_scores", scoresOf), `"device":2`, "what was reserved is predicted")
		})
	}
}

// Both services follow an engine over ZMQ, without NATS.
func TestServicesFollowEnginesOverZMQ(t *testing.T) {
	at := fmt.Sprintf(`"zmq", "kv_events_endpoint": %q`, zmqEngine(t))
	sel, index := following(t, nil), over(t, nil)
	must(t, sel, 201, "POST", "/workers", engineSays+at+`}`)
	must(t, index, 201, "POST", "/register", `{"id": "w", "model": "m", "block_size": 2, "kv_events": `+at+`, "total_kv_blocks": 9}`)
	comesTo(t, index, "POST", "/query", scoresOf, `"worker":"w","rank":0,"device":2`)
	comesTo(t, index, "GET", "/workers", "", `"state":"live"`)
	comesTo(t, sel, "POST", "/overlap_scores", scoresOf, `"device":2`)
	for _, events := range []string{
		`"nats"}`,
		`"zmq"}`,
		`"zmq", "kv_events_endpoint": "udp://h:1"}`,
		`"zmq", "kv_events_endpoint": "tcp://*:5557"}`,
		`"post", "kv_events_endpoint": "tcp://h:1"}`,
		`"zmq", "kv_events_endpoint": "tcp://h\r\nx:1"}`,
		`"zmq", "kv_events_endpoint": "tcp://h:1", "kv_events_replay_endpoint": "tcp://*:1"}`,
		`"zmq", "kv_events_endpoint": "tcp://h:1", "kv_events_topic": "a\nb"}`,
	} {
		got := must(t, index, 400, "POST", "/register", `{"id": "x", "model": "m", "block_size": 2, "kv_events": `+events)
		assert.Contains(t, got, `"param":"kv_events`, events)
	}
}

// published runs a worker's publisher until stop is called.
func published(t *testing.T, bus wire.Bus, worker string) (stop func()) {
	t.Helper()
	p, err := view.NewPublisher(view.PublisherConfig{Source: wire.Source{Pool: "m/both", Worker: worker}}, bus, quiet)
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
	s := NewIndex(Config{}, soon, bus, http.NotFoundHandler(), quiet, prometheus.NewRegistry())
	start(t, s)
	return s
}

// comesTo waits until a request is answered 200 with that body.
func comesTo(t *testing.T, s *Server, method, path, query, contains string) {
	t.Helper()
	require.Eventually(t, func() bool {
		res := ask(t, s, method, path, query)
		assert.Equal(t, 200, res.Code, "%s %s: %s", method, path, res.Body)
		return strings.Contains(res.Body.String(), contains)
	}, 20*time.Second, 2*time.Millisecond, "%s %s %s is answered without %s", method, path, query, contains)
}

// Publishers' own state arrives over the bus, also at services that start later, and select uses it.
func TestPublishedIsIndexed(t *testing.T) {
	bus := testkit.NewBus()
	t.Cleanup(bus.Close)
	for _, worker := range []string{"stays", "goes"} {
		defer published(t, bus, worker)()
	}
	index, sel := over(t, bus), following(t, bus)
	for _, id := range []string{"stays", "goes", "cold"} {
		if id != "cold" {
			must(t, index, 201, "POST", "/register", `{"id": "`+id+`", "model": "m", "block_size": 2, "kv_events": "nats"}`)
		}
		must(t, sel, 201, "POST", "/workers", strings.Replace(engineSays, `"w"`, `"`+id+`"`, 1)+`"nats"}`)
	}
	const both = `{"worker":"goes","rank":0,"device":2,"host":0,"disk":0,"shared":0},{"worker":"stays","rank":0,"device":2,`
	comesTo(t, index, "POST", "/query", scoresOf, both)
	must(t, index, 204, "POST", "/unregister", `{"id": "goes"}`)
	comesTo(t, index, "POST", "/query", scoresOf, `"workers":[{"worker":"stays","rank":0,"device":2,`)
	comesTo(t, sel, "POST", "/overlap_scores", scoresOf, both)
	assert.Regexp(t, `"worker":"(stays|goes)".*"overlap_blocks":2`, must(t, sel, 200, "POST", "/select", scoresOf))
}
