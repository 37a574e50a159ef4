package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// awaitedRig is a subscriber that listens on a port of the loopback, counts connections, and logs.
func awaitedRig(t *testing.T) (r *rig, port int, connections *atomic.Int64, log *logLines) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port = portOf(ln)
	ln.Close()
	connections, log = new(atomic.Int64), new(logLines)
	cfg := zmqConfig()
	listen := (&zmqEngine{conns: map[net.Conn]struct{}{}}).loopback
	cfg.ZMQ.Listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		ln, err := listen(ctx, network, address)
		return countedListener{ln, connections}, err
	}
	return newRigWithLog(t, cfg, nil, nil, slog.New(slog.NewTextHandler(log, nil))), port, connections, log
}

type countedListener struct {
	net.Listener
	accepted *atomic.Int64
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// dialler is an engine that connects to a port.
func dialler(t *testing.T, seed uint64, port int, topic string) (e *zmqEngine, at zmq.Address) {
	e = newZMQEngine(t, seed, engine.PublisherConfig{Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", port), ReplayEndpoint: "tcp://*:0",
		Topic: topic})
	_, replay := e.pub.Ports()
	return e, zmq.Address{Endpoint: fmt.Sprintf("tcp://*:%d", port), Replay: fmt.Sprintf("tcp://127.0.0.1:%d", replay), Topic: topic}
}

// Engines that connect to one port are distinguished by their topics, even if one topic is a prefix of another.
func TestEnginesShareAPort(t *testing.T) {
	r, port, connections, _ := awaitedRig(t)
	topics := []string{"kv@a", "kv@b", "kv@a@more", ""}
	var engines []*zmqEngine
	for i, topic := range topics {
		e, at := dialler(t, uint64(i), port, topic)
		engines = append(engines, e)
		require.NoError(t, r.sub.TrackZMQ(testkit.Pool, fmt.Sprint("w", i), []int{0}, 16, 0, at))
	}
	r.until("all are subscribed to", func() bool {
		return !slices.ContainsFunc(engines, func(e *zmqEngine) bool { return e.pub.Subscribers() != 1 })
	})
	for range 20 {
		for _, e := range engines {
			e.publish(3)
		}
	}
	for i, e := range engines {
		r.until(topics[i]+" is exact", func() bool { return r.exact(e, fmt.Sprint("w", i)) })
	}
	assert.Equal(t, int64(len(topics)), connections.Load(), "connections of %d engines", len(topics))
	// One leaves; the others stay.
	r.sub.Untrack(testkit.Pool, "w0")
	for _, e := range engines {
		e.publish(3)
	}
	for i, e := range engines[1:] {
		r.until(topics[i+1]+" is exact", func() bool { return r.exact(e, fmt.Sprint("w", i+1)) })
	}
}

// Two engines that look alike, as in a rolling restart, are not disconnected in turns: the last one counts,
// and the other when that is gone.
func TestTwoEnginesOfOneWorker(t *testing.T) {
	r, port, connections, log := awaitedRig(t)
	old, at := dialler(t, 1, port, "kv")
	at.Replay = ""
	require.NoError(t, r.sub.TrackZMQ(testkit.Pool, "w", []int{0}, 16, 0, at))
	r.until("the old one is connected", func() bool { return old.pub.Subscribers() == 1 })
	old.publish(10)
	r.until("exact", func() bool { return r.exact(old, "w") })
	fresh, _ := dialler(t, 2, port, "kv")
	r.until("both are connected", func() bool { return connections.Load() == 2 && fresh.pub.Subscribers() == 1 })
	for range 50 {
		old.publish(1)
		fresh.publish(1)
	}
	r.until("the new one counts", func() bool { return r.exact(fresh, "w") })
	fresh.stop()
	fresh.stop = func() {}
	r.until("the old one is followed", func() bool { return log.count(`msg="KV events connected"`) == 3 })
	old.publish(1)
	old.clear()
	r.until("the old one counts again", func() bool { return r.exact(old, "w") })
	n, lines := connections.Load(), log.count("KV events")
	assert.True(t, n == 2 && lines <= 12, "%d connections, %d lines in the log:\n%s", n, lines, log)
}

func TestPortTwiceIsRefused(t *testing.T) {
	r, port, _, _ := awaitedRig(t)
	at := func(host string, offset int, topic string) zmq.Address {
		return zmq.Address{Endpoint: fmt.Sprintf("tcp://%s:%d", host, port+offset), Topic: topic}
	}
	track := func(worker string, at zmq.Address) error {
		return r.sub.TrackZMQ(testkit.Pool, worker, []int{0, 1}, 16, 0, at)
	}
	require.NoError(t, track("a", at("*", 0, "")))
	for _, bad := range []zmq.Address{at("*", 0, ""), at("0.0.0.0", 0, ""), at("*", 1, ""), at("*", -1, "")} {
		err := track("b", bad)
		taken, ok := errors.AsType[*follow.PortError](err)
		assert.True(t, ok && taken.Worker == "a" && strings.Contains(err.Error(), fmt.Sprint(taken.Port)), "%+v: %v", bad, err)
	}
	for worker, good := range map[string]zmq.Address{"a": at("*", 0, ""), "b": at("*", 0, "b"), "c": at("*", 2, ""),
		"d": at("127.0.0.1", 0, "")} {
		assert.NoError(t, track(worker, good), "%+v", good)
	}
}

// Without a replay socket a first message that has number 1 may be the engine's first, or not. It is not where the
// engine's stream began at 0, nor if what follows names unknown blocks.
func TestFirstMessageLostWithoutReplay(t *testing.T) {
	t.Run("it begins at 0", func(t *testing.T) {
		e, r := followedZMQ(t, engine.PublisherConfig{})
		e.publish(20)
		r.until("exact", func() bool { return r.exact(e, "w") })
		e.restart()
		e.skip(1)
		e.subscribed()
		e.publish(1)
		r.until("predicted", func() bool { s := r.status("w"); return s.Seq == 2 && s.State == follow.Predicted })
	})
	t.Run("an unknown block is named", func(t *testing.T) {
		e, r := followedZMQ(t, engine.PublisherConfig{})
		e.skip(1)
		gone := e.Blocks[1]
		e.publishEvents(wire.Event{Kind: wire.Stored, BlockSize: 16, Hashes: []wire.Hash{77}, Tokens: make([]uint32, 16)})
		r.until("taken for the first", func() bool { s := r.status("w"); return s.Seq == 2 && s.State == follow.Live })
		e.publishEvents(wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{gone.Hash}})
		r.until("predicted", func() bool { return r.status("w").State == follow.Predicted })
	})
}

// An engine without a replay socket that is restarted without a listener may appear again at just the number that
// the old one would have had.
func TestRestartAtTheNextNumberWithoutReplay(t *testing.T) {
	e, r := followedZMQ(t, engine.PublisherConfig{})
	e.publish(5)
	r.until("exact", func() bool { return r.exact(e, "w") })
	e.restart()
	e.skip(5)
	e.subscribed()
	e.publishEvents(wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{e.Blocks[1].Hash}})
	r.until("predicted", func() bool { s := r.status("w"); return s.Seq == 6 && s.State == follow.Predicted && s.Blocks == 0 })
}
