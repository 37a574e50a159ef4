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

// linkedFleet is a gateway and workers in processes of their own, with a link before each worker.
type linkedFleet struct {
	*served
	links map[string]*linktest.Link
}

func startLinked(t *testing.T, args ...string) *linkedFleet {
	t.Helper()
	f := &linkedFleet{links: map[string]*linktest.Link{}}
	for _, role := range []string{"prefill", "decode"} {
		for i := range 2 {
			id, port := fmt.Sprintf("%s-%d", role, i+1), porttest.Free(t)
			startChild(t, "", "worker", "--role", role, "--id", id, "--worker-port", fmt.Sprint(port))
			l, err := linktest.New(net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(l.Close)
			f.links[id] = l
			args = append(args, "--"+role+"-url", "http://"+l.Addr()+",id="+id)
		}
	}
	f.served = serveProcess(t, args...)
	for id := range f.links {
		f.fleet.eventually(id+" is up", 20*time.Second, func() bool { return f.state(id) == "up" })
	}
	return f
}

// What a network does to the streams of a decode worker costs none of them a token: those that stand still or break go
// on on the other worker, those that are slow are waited for.
func TestLinksBreakInMidAnswer(t *testing.T) {
	for _, c := range []struct {
		name  string
		state linktest.State
		then  func(l *linktest.Link) int // to the open connections
		still bool                       // the streams stand still until they are moved
	}{
		{"reset", linktest.State{Refuse: true}, (*linktest.Link).Cut, false},
		{"half-closed", linktest.State{}, (*linktest.Link).HalfClose, false},
		{"nothing passes", linktest.State{Up: linktest.Way{Hole: true}, Down: linktest.Way{Hole: true}}, nil, true},
		{"nothing comes back", linktest.State{Down: linktest.Way{Hole: true}}, nil, true},
		{"nothing gets there", linktest.State{Up: linktest.Way{Hole: true}}, nil, false},
		{"slow", linktest.State{Down: linktest.Way{Rate: 10_000}}, nil, false},
		{"late", linktest.State{Up: linktest.Way{Delay: 50 * time.Millisecond}, Down: linktest.Way{Delay: 50 * time.Millisecond}}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startLinked(t, "--stream-idle-timeout", "500ms")
			l := f.links["decode-1"]
			f.order("cordon", "decode-2")
			answers := f.streams(prompts(c.name, atOnce), 100, 10, func() {
				f.order("uncordon", "decode-2")
				l.Set(c.state)
				if c.then != nil {
					if n := c.then(l); n < atOnce {
						t.Errorf("%d connections were open", n)
					}
				}
			})
			var gaps []time.Duration
			for _, a := range answers {
				gaps = append(gaps, a.gap)
			}
			t.Logf("gap p50 %v, longest %v", quantile(gaps, .5), quantile(gaps, 1))
			if least := quantile(gaps, 0); c.still && least < 400*time.Millisecond {
				t.Errorf("a stream stood still for %v only: the link was not broken", least)
			}
			l.Set(linktest.State{})
			for id, address := range f.addresses() {
				f.fleet.eventually(id+" holds nothing", 10*time.Second, func() bool {
					b, ok := f.books(address)
					return ok && b.Idle()
				})
			}
			f.stop()
		})
	}
}

// A prefill worker that the network cuts off before prefill is done costs no answer: its prompts go to the other one.
func TestLinksBreakInPrefill(t *testing.T) {
	for name, state := range map[string]linktest.State{
		"refused": {Refuse: true}, "swallowed": {Up: linktest.Way{Hole: true}}, "unanswered": {Down: linktest.Way{Hole: true}},
	} {
		t.Run(name, func(t *testing.T) {
			f := startLinked(t, "--prefill-timeout", "1s")
			f.streams(prompts("First", atOnce), 4, 0, nil)
			f.links["prefill-1"].Set(state)
			if state.Refuse {
				f.links["prefill-1"].Cut()
			}
			f.streams(prompts("Second", atOnce), 10, 0, nil)
			f.links["prefill-1"].Set(linktest.State{})
			f.stop()
		})
	}
}

// NATS and etcd that the network takes away cost no answer: the gateway goes on with what it knows. Once they are back,
// a worker that has come meanwhile is found.
func TestLinksToServersBreak(t *testing.T) {
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
		l, err := linktest.New(at.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		links, through = append(links, l), append(through, at.Scheme+"://"+l.Addr())
	}
	join := func(role, id string) {
		startChild(t, "", "worker", "--role", role, "--id", id, "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL(), "--lease-ttl", "2s")
	}
	join("prefill", "prefill-1")
	join("decode", "decode-1")
	s := serveProcess(t, "--etcd-endpoints", through[0], "--nats-url", through[1], "--lease-ttl", "2s")
	up := func(id string) {
		t.Helper()
		s.fleet.eventually(id+" is up", 30*time.Second, func() bool { return s.state(id) == "up" })
	}
	up("prefill-1")
	up("decode-1")
	both := linktest.Way{Hole: true}
	cases := []struct {
		name  string
		state linktest.State
		cut   bool
	}{
		{"away", linktest.State{Refuse: true}, true},
		{"silent", linktest.State{Up: both, Down: both}, false},
		{"unheard", linktest.State{Up: both}, false},
		{"slow", linktest.State{Down: linktest.Way{Rate: 20_000, Delay: 50 * time.Millisecond}}, false},
	}
	for i, c := range cases[:2*times(2)] {
		t.Run(c.name, func(t *testing.T) {
			for _, l := range links {
				l.Set(c.state)
				if c.cut && l.Cut() == 0 {
					t.Error("no connection was cut")
				}
			}
			id := fmt.Sprintf("decode-%d", i+2)
			join("decode", id)
			for round := range 3 { // longer than a lease
				s.streams(prompts(fmt.Sprint(c.name, round), atOnce), 100, 0, nil)
			}
			if s.state("prefill-1") != "up" || s.state("decode-1") != "up" {
				t.Error("a worker was taken out that nothing had befallen")
			}
			if (c.cut || c.state.Down.Hole) && s.state(id) != "" {
				t.Errorf("%s was found through a link that passes nothing", id)
			}
			for _, l := range links {
				l.Set(linktest.State{})
			}
			up(id)
			s.streams(prompts(c.name, atOnce), 10, 0, nil)
		})
	}
	s.stop()
}

// A link to NATS that passes nothing holds up nothing that publishes for long, however full its buffers are.
func TestASilentNATSHoldsUpNoPublisher(t *testing.T) {
	inside, err := stack.Embed(stack.EmbedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	at, err := url.Parse(inside.NATSURL())
	if err != nil {
		t.Fatal(err)
	}
	l, err := linktest.New(at.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
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
	t.Logf("the longest took %v", longest)
	if longest > 2*time.Second+spare() {
		t.Errorf("one message was held up for %v", longest)
	}
}
