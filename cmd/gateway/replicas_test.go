package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// replicas is gateways, each in a process of its own, that share a NATS and workers by URL.
type replicas struct {
	t    testing.TB
	args []string
}

func newReplicas(t testing.TB, prefill, decode int) *replicas {
	t.Helper()
	server, err := natsbus.StartServer(natsbus.ServerConfig{})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	r := &replicas{t: t, args: []string{"--nats-url", server.URL(), "--replica-group", "test"}}
	for role, n := range map[string]int{"prefill": prefill, "decode": decode} {
		for i := range n {
			id := fmt.Sprintf("%s-%d", role, i+1)
			r.args = append(r.args, "--"+role+"-url", loneWorker(t, role, id, 20)+",id="+id)
		}
	}
	return r
}

// join starts a gateway, whose name in the group is its host and port, and waits until it is healthy.
func (r *replicas) join(port int) *proc {
	r.t.Helper()
	s := startServe(r.t, append(r.args, "--http-port", fmt.Sprint(port))...)
	s.eventually("it is healthy", s.healthy)
	return s
}

// peers are the states of the other gateways, and how many requests they have booked.
func (p *proc) peers() (states map[string]string, requests int) {
	p.t.Helper()
	states = map[string]string{}
	for _, other := range p.workers().Replicas {
		states[other.Name] = other.State
		requests += other.Requests
	}
	return states, requests
}

// know waits until each of the gateways has so many live peers.
func know(others int, gateways ...*proc) {
	for _, s := range gateways {
		s.t.Helper()
		s.eventually("each has the others as peers", func() bool {
			states, _ := s.peers()
			return s.healthy() && len(states) == others && !slices.ContainsFunc(slices.Collect(maps.Values(states)),
				func(state string) bool { return state != "whole" })
		})
	}
}

// nothingBooked waits until that is so at each of the gateways, of the others too.
func nothingBooked(gateways ...*proc) {
	for _, s := range gateways {
		s.t.Helper()
		s.eventually("nothing is booked", func() bool { _, theirs := s.peers(); return len(s.requests())+theirs == 0 })
	}
}

// open begins n answers that last until they are ended; end returns what came of them, context.Canceled where they went on until then.
func (p *proc) open(n int) (end func() []error) {
	ctx, cancel := context.WithCancel(p.t.Context())
	errs := make([]error, n)
	var all sync.WaitGroup
	for i, prompt := range prompts("Open", n) {
		all.Go(func() { errs[i] = p.stream(ctx, prompt, 100_000, func() {}).err })
	}
	return func() []error { cancel(); all.Wait(); return errs }
}

// TestReplicas has three gateways book on the same workers. Each counts what the others have booked; what a killed one had booked
// ends, and its clients alone lose anything; one that restarts has the others' bookings before it is
// healthy; and one that stops leaves.
func TestReplicas(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, 2)
	port := testkit.FreePort(t)
	a, b, c := r.join(0), r.join(port), r.join(0)
	know(2, a, b, c)
	ofA := a.open(3)
	sum := func(requests map[string]int) (n int) {
		for _, k := range requests {
			n += k
		}
		return n
	}
	decoding := func(s *proc, n int) bool {
		requests := s.requests()
		return requests["decode-1"]+requests["decode-2"] == n && sum(requests) == n
	}
	b.eventually("b counts what a has booked", func() bool { return decoding(b, 3) })
	ofB := b.open(5)
	for _, s := range []*proc{a, b, c} {
		s.eventually("each counts all that decode", func() bool { return decoding(s, 8) })
	}
	_, theirs := c.peers()
	assert.Equal(t, 8, theirs, "requests of the others")
	assert.InDelta(t, 4, c.requests()["decode-1"], 1, "of 8 requests of two gateways, on the first of two workers")

	_, page := get(c.url + "/")
	assert.Contains(t, page, "Gateways of the group")
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.Contains(t, page, fmt.Sprintf(`data-live="g.%s:%d.requests">5<`, host, port))

	b.kill()
	for _, s := range []*proc{a, c} {
		s.eventually("what b had booked has ended", func() bool { states, _ := s.peers(); return len(states) == 1 && sum(s.requests()) <= 3 })
	}
	for _, err := range ofB() {
		assert.NotErrorIs(t, err, context.Canceled, "an answer of the gateway that was killed")
	}

	before := a.requests()
	again := r.join(port)
	assert.Equal(t, 3, sum(before), "bookings of a")
	assert.Equal(t, before, a.requests(), "the bookings stay")
	again.eventually("it has what the others booked", func() bool {
		_, theirs := again.peers()
		return maps.Equal(before, again.requests()) && theirs == 3
	})
	for _, err := range ofA() {
		assert.ErrorIs(t, err, context.Canceled, "an answer of another gateway")
	}
	nothingBooked(a, again, c)
	c.stop()
	a.logged("gateway drained and left the group")
	again.stop()
	a.stop()
}

// TestReplicasWithoutANATS has three gateways make one NATS of those inside them: any two of them continue when the third is killed.
func TestReplicasWithoutANATS(t *testing.T) {
	t.Parallel()
	var ports, peers []string
	for range 3 {
		port := fmt.Sprint(testkit.FreePort(t))
		ports, peers = append(ports, port), append(peers, "127.0.0.1:"+port)
	}
	workers := []string{"--prefill-url", loneWorker(t, "prefill", "p", 20) + ",id=p", "--decode-url", loneWorker(t, "decode", "d", 20) +
		",id=d"}
	var gateways []*proc
	for _, port := range ports {
		s := startServe(t, append(workers, "--replica-peers", strings.Join(peers, ","), "--embed-ports", "0,0,"+port)...)
		assert.NotContains(t, s.out.String(), "run inside", "workers are invited to a NATS that is for gateways")
		gateways = append(gateways, s)
	}
	know(2, gateways...)
	answers := gateways[1].open(3)
	gateways[2].eventually("its bookings are known", func() bool { _, theirs := gateways[2].peers(); return theirs == 3 })
	gateways[0].kill()
	know(1, gateways[1:]...)
	for _, err := range answers() {
		assert.ErrorIs(t, err, context.Canceled)
	}
	nothingBooked(gateways[2])
}

// TestReplicasShareSessions has a session's turns come to two gateways while its decode worker has most to do. All go to the workers of
// the first turn.
func TestReplicasShareSessions(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, 2)
	r.args = append(r.args, "--router-session-affinity-ttl-secs", "600")
	a, b := r.join(0), r.join(0)
	know(1, a, b)
	turn := func(s *proc, session string, i int) []string { // no two turns share a prompt
		t.Helper()
		p, d, err := s.complete(session, fmt.Sprint(i, " is the turn"), 2)
		require.NoError(t, err)
		return []string{p, d}
	}
	bound := turn(a, "s", 0)
	decode := bound[1]
	other := map[string]string{"decode-1": "decode-2", "decode-2": "decode-1"}[decode]
	a.order("cordon", other)
	b.order("cordon", other)
	end := b.open(3)
	for _, s := range []*proc{a, b} {
		s.eventually("its decode worker has most to do", func() bool { return s.requests()[decode] == 3 })
		s.eventually("it has both bindings", func() bool {
			_, metrics := get(s.url + "/metrics")
			return totalOf(metrics, "tandem_router_session_bindings", "") == 2
		})
	}
	a.order("uncordon", other)
	b.order("uncordon", other)
	for i := range 6 {
		assert.Equal(t, bound, turn([]*proc{b, a}[i%2], "s", 1+i), "turn %d", i)
	}
	assert.NotEqual(t, decode, turn(b, "", 10)[1], "a request of no session goes to the worker that has most to do")
	end()
	nothingBooked(a, b)
	a.stop()
	b.stop()
}
