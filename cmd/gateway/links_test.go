package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/linktest"
	"github.com/tandem-pd/tandem/lab/porttest"
)

// TestLinksBreak resets and half-closes the connections between a gateway's process and those of its workers: streams go on on the
// other decode worker, token for token, and prompts at the other prefill worker. cmd/gateway/e2e/failures has the same in virtual time, and
// links that are silent.
func TestLinksBreak(t *testing.T) {
	t.Parallel()
	links := map[string]*linktest.Link{}
	var args []string
	for _, role := range []string{"prefill", "decode"} {
		for i := range 2 {
			id, port := fmt.Sprintf("%s-%d", role, i+1), porttest.Free(t)
			startChild(t, "", "worker", "--role", role, "--id", id, "--worker-port", fmt.Sprint(port))
			links[id] = link(t, net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
			args = append(args, "--"+role+"-url", "http://"+links[id].Addr()+",id="+id)
		}
	}
	s := serveProcess(t, args...)
	allUp := func() {
		for id := range links {
			s.eventually(id+" is up", func() bool { return s.state(id) == "up" })
		}
	}
	for _, c := range []struct {
		name, id string
		state    linktest.State
		cut      func(*linktest.Link) int
		tokens   int // each stream has when the link breaks
	}{
		{"reset", "decode-1", linktest.State{Refuse: true}, (*linktest.Link).Cut, 10},
		{"half-closed", "decode-1", linktest.State{}, (*linktest.Link).HalfClose, 10},
		{"reset in prefill", "prefill-1", linktest.State{Refuse: true}, (*linktest.Link).Cut, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			allUp()
			s.order("cordon", "decode-2")
			s.streams(prompts(c.name, atOnce), 100, c.tokens, func() {
				s.order("uncordon", "decode-2")
				links[c.id].Set(c.state)
				if c.cut(links[c.id]) == 0 {
					t.Error("no connection was open")
				}
			})
			s.streams(prompts(c.name+" again", atOnce), 4, 0, nil)
			links[c.id].Set(linktest.State{})
			s.nothingHeld(false)
		})
	}
	s.stop()
}

// link is one to that address, until the test ends.
func link(t *testing.T, to string) *linktest.Link {
	t.Helper()
	l, err := linktest.New(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// TestLinksToServersBreak silences the links to NATS and etcd for longer than the gateway's lease: the gateway goes on with what it
// knows. Once they are back, a worker that has come meanwhile is found.
func TestLinksToServersBreak(t *testing.T) {
	t.Parallel()
	inside, err := stack.Embed(stack.EmbedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	var links []*linktest.Link
	var through []string
	for _, server := range []string{inside.EtcdURL(), inside.NATSURL()} {
		at, err := url.Parse(server)
		if err != nil {
			t.Fatal(err)
		}
		l := link(t, at.Host)
		links, through = append(links, l), append(through, at.Scheme+"://"+l.Addr())
	}
	join := func(role, id string) {
		startChild(t, "", "worker", "--role", role, "--id", id, "--speedup", "20", "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL())
	}
	join("prefill", "prefill-1")
	join("decode", "decode-1")
	s := serveProcess(t, "--etcd-endpoints", through[0], "--nats-url", through[1], "--lease-ttl", "2s")
	up := func(id string) {
		t.Helper()
		s.eventually(id+" is up", func() bool { return s.state(id) == "up" })
	}
	up("prefill-1")
	up("decode-1")
	hole := linktest.Way{Hole: true}
	for _, l := range links {
		l.Set(linktest.State{Up: hole, Down: hole})
	}
	join("decode", "decode-2")
	for began, round := time.Now(), 0; time.Since(began) < 3*time.Second; round++ {
		s.streams(prompts(fmt.Sprint("Round ", round), atOnce), 100, 0, nil)
	}
	if s.state("prefill-1") != "up" || s.state("decode-1") != "up" {
		t.Error("a worker was taken out that nothing had befallen")
	}
	if s.state("decode-2") != "" {
		t.Error("decode-2 was found through a link that passes nothing")
	}
	for _, l := range links {
		l.Set(linktest.State{})
	}
	up("decode-2")
	s.streams(prompts("Back", atOnce), 10, 0, nil)
	s.stop()
}

// A link to NATS that passes nothing holds up nothing that publishes for long, however full its buffers are.
func TestASilentNATSHoldsUpNoPublisher(t *testing.T) {
	t.Parallel()
	inside, err := stack.Embed(stack.EmbedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	at, err := url.Parse(inside.NATSURL())
	if err != nil {
		t.Fatal(err)
	}
	l := link(t, at.Host)
	links, unlink, err := stack.Connect(&stack.Discovery{NATSURL: "nats://" + l.Addr()}, nil, slog.New(slog.DiscardHandler), nats.Name("test"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlink()
	l.Set(linktest.State{Up: linktest.Way{Hole: true}})
	var longest time.Duration
	for links.Bus.(interface{ Connected() bool }).Connected() {
		began := time.Now()
		_ = links.Bus.Publish(&nats.Msg{Subject: "test", Data: make([]byte, 4<<10)})
		longest = max(longest, time.Since(began))
	}
	if longest > 20*time.Second {
		t.Errorf("one message was held up for %v", longest)
	}
}
