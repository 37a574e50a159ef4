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
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/internal/kvevents/zmq/zmtp"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// following is a `gateway select` that follows events, with a bus or, where it is
// nil, over ZMQ alone.
func following(t *testing.T, bus wire.Bus) *Server {
	t.Helper()
	base := router.DefaultConfig()
	sel := SelectConfig{
		Routers: map[pools.Role]router.Config{pools.Both: base, pools.Prefill: base.For(pools.Prefill), pools.Decode: base.For(pools.Decode)},
		Events:  follow.Config{RetryMin: time.Millisecond, RetryMax: 10 * time.Millisecond},
	}
	s, err := NewSelect(Config{}, sel, bus, http.NotFoundHandler(), quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	start(t, s)
	return s
}

// zmqEngine publishes one batch over ZMQ, under the number 0, to each subscriber, until the test ends.
func zmqEngine(t *testing.T, events ...wire.Event) (endpoint string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	batch := wire.VLLM.Append(nil, &wire.Batch{TS: 1, Events: events})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		zmtp.Serve(ctx, ln, zmtp.PUB, zmtp.Options{}, func(_ context.Context, c *zmtp.Conn) {
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
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return "tcp://" + ln.Addr().String()
}

const (
	scoresOf   = `{"model": "m", "token_ids": [1, 2, 3, 4]}`
	engineSays = `{"id": "w", "model": "m", "role": "both", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2, "kv_events": `
)

// Workers whose events do not come, because nobody publishes at the endpoint or
// there is no NATS, are predicted.
func TestSelectPredictsWhomItDoesNotHear(t *testing.T) {
	bus := eventstest.NewBus()
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
			if got := must(t, s, 200, "POST", "/overlap_scores", scoresOf); !strings.Contains(got, `"device":2`) {
				t.Errorf("what was reserved is not predicted: %s", got)
			}
		})
	}
}

// Both services follow an engine over ZMQ, without NATS.
func TestServicesFollowEnginesOverZMQ(t *testing.T) {
	endpoint := zmqEngine(t, wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2})
	at := fmt.Sprintf(`"zmq", "kv_events_endpoint": %q`, endpoint)
	sel, index := following(t, nil), over(t, Config{}, nil)
	start(t, index)
	must(t, sel, 201, "POST", "/workers", engineSays+at+`}`)
	must(t, index, 201, "POST", "/register", `{"id": "w", "model": "m", "block_size": 2, "kv_events": `+at+`, "total_kv_blocks": 9}`)
	until(t, index, scoresOf, `"worker":"w","rank":0,"device":2`)
	comesTo(t, index, "GET", "/workers", "", `"state":"live"`)
	comesTo(t, sel, "POST", "/overlap_scores", scoresOf, `"device":2`)
	for _, body := range []string{
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "nats"}`,
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "zmq"}`,
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "zmq", "kv_events_endpoint": "udp://h:1"}`,
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "zmq", "kv_events_endpoint": "tcp://*:5557"}`,
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "post", "kv_events_endpoint": "tcp://h:1"}`,
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "zmq", "kv_events_endpoint": "tcp://h\r\nx:1"}`,
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "zmq", "kv_events_endpoint": "tcp://h:1", "kv_events_replay_endpoint": "tcp://*:1"}`,
		`{"id": "x", "model": "m", "block_size": 2, "kv_events": "zmq", "kv_events_endpoint": "tcp://h:1", "kv_events_topic": "a\nb"}`,
	} {
		if got := must(t, index, 400, "POST", "/register", body); !strings.Contains(got, `"param":"kv_events`) {
			t.Errorf("%s: %s", body, got)
		}
	}
}
