package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// TestLinksBreak resets and half-closes the connections between a gateway's process and that of a worker: streams continue on the
// other decode worker, token for token. cmd/gateway/e2e/failures has more in virtual time.
func TestLinksBreak(t *testing.T) {
	t.Parallel()
	port := testkit.FreePort(t)
	startWorker(t, "--role", "decode", "--id", "decode-1", "--worker-port", fmt.Sprint(port), "--speedup", "5")
	broken := link(t, net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	s := startServe(t, "--prefill-url", loneWorker(t, "prefill", "prefill-1", 5)+",id=prefill-1",
		"--decode-url", "http://"+broken.Addr()+",id=decode-1", "--decode-url", loneWorker(t, "decode", "decode-2", 5)+",id=decode-2")
	for name, c := range map[string]struct {
		state testkit.LinkState
		cut   func(*testkit.Link) int
	}{
		"reset":       {testkit.LinkState{Refuse: true}, (*testkit.Link).Cut},
		"half-closed": {testkit.LinkState{}, (*testkit.Link).HalfClose},
	} {
		t.Run(name, func(t *testing.T) {
			s.up("prefill-1", "decode-1", "decode-2")
			s.order("cordon", "decode-2")
			s.streams(prompts(name, atOnce), 200, 10, func() {
				s.order("uncordon", "decode-2")
				broken.Set(c.state)
				assert.NotZero(t, c.cut(broken), "connections that were open")
			})
			s.streams(prompts(name+" again", atOnce), 4, 0, nil)
			broken.Set(testkit.LinkState{})
			s.nothingHeld(false)
		})
	}
	s.stop()
}

// link is one to that address, until the test ends.
func link(t *testing.T, to string) *testkit.Link {
	t.Helper()
	l, err := testkit.NewLink(to)
	require.NoError(t, err)
	t.Cleanup(l.Close)
	return l
}

// linkTo is a link to a server, and the server's URL through it.
func linkTo(t *testing.T, server string) (l *testkit.Link, through string) {
	t.Helper()
	at, err := url.Parse(server)
	require.NoError(t, err)
	l = link(t, at.Host)
	return l, at.Scheme + "://" + l.Addr()
}

// TestLinksToServersBreak silences the links to NATS and etcd for longer than the gateway's lease: the gateway continues with what it
// knows. Once they are back, a worker that has come meanwhile is found.
func TestLinksToServersBreak(t *testing.T) {
	t.Parallel()
	inside, err := stack.Embed(stack.EmbedConfig{})
	require.NoError(t, err)
	defer inside.Close()
	etcd, throughEtcd := linkTo(t, inside.EtcdURL())
	bus, throughNATS := linkTo(t, inside.NATSURL())
	join := func(role, id string) {
		startWorker(t, "--role", role, "--id", id, "--speedup", "20", "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL())
	}
	join("prefill", "prefill-1")
	join("decode", "decode-1")
	s := startServe(t, "--etcd-endpoints", throughEtcd, "--nats-url", throughNATS)
	s.up("prefill-1", "decode-1")
	hole := testkit.Way{Hole: true}
	etcd.Set(testkit.LinkState{Up: hole, Down: hole})
	bus.Set(testkit.LinkState{Up: hole, Down: hole})
	join("decode", "decode-2")
	for began, round := time.Now(), 0; time.Since(began) < 3*time.Second; round++ {
		s.streams(prompts(fmt.Sprint("Round ", round), atOnce), 100, 0, nil)
	}
	assert.Equal(t, []string{"up", "up", ""}, []string{s.state("prefill-1"), s.state("decode-1"), s.state("decode-2")},
		"what is known behind links that pass nothing")
	etcd.Set(testkit.LinkState{})
	bus.Set(testkit.LinkState{})
	s.up("decode-2")
	s.streams(prompts("Back", atOnce), 10, 0, nil)
	s.stop()
}

// A link to NATS that passes nothing holds up nothing that publishes for long, however full its buffers are.
func TestASilentNATSHoldsUpNoPublisher(t *testing.T) {
	t.Parallel()
	inside, err := stack.Embed(stack.EmbedConfig{})
	require.NoError(t, err)
	defer inside.Close()
	l, through := linkTo(t, inside.NATSURL())
	links, unlink, err := stack.Connect(&stack.Discovery{NATSURL: through}, nil, slog.New(slog.DiscardHandler), nats.Name("test"))
	require.NoError(t, err)
	defer unlink()
	l.Set(testkit.LinkState{Up: testkit.Way{Hole: true}})
	var longest time.Duration
	for links.Bus.(interface{ Connected() bool }).Connected() {
		began := time.Now()
		_ = links.Bus.Publish(&nats.Msg{Subject: "test", Data: make([]byte, 4<<10)})
		longest = max(longest, time.Since(began))
	}
	assert.LessOrEqual(t, longest, 20*time.Second, "one message was held up for")
}
