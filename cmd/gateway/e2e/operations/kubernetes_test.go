package operations

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/backoff"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes/apitest"
)

// cluster is a fleet whose workers are pods.
type cluster struct {
	*fleet.Fleet
	api  *apitest.Server
	pods map[string]apitest.Pod
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{api: apitest.New(t), pods: map[string]apitest.Pod{}}
	cfg := fleet.GatewayConfig()
	cfg.Workers.Kubernetes = kubernetes.Config{
		Selector: "app=llm", Server: c.api.URL(), Account: c.api.Account, Retry: backoff.Backoff{Min: 1e6, Max: 2e7},
	}
	c.Fleet = fleet.NewStatic(t, cfg)
	return c
}

// pod runs an engine in a pod that is ready.
func (c *cluster) pod(role pools.Role, id string) {
	c.T.Helper()
	at, err := url.Parse(c.Serve(role, id, 0))
	if err != nil {
		c.T.Fatal(err)
	}
	port, _ := strconv.Atoi(at.Port())
	c.pods[id] = apitest.Pod{
		Name: id, UID: fmt.Sprintf("uid-%s-%d", id, port), Labels: map[string]string{"app": "llm", "tandem.dev/role": string(role)},
		Ports: map[string]int{"http": port},
	}
	c.api.Put(c.pods[id])
}

// change changes a pod.
func (c *cluster) change(id string, change func(p *apitest.Pod)) {
	p := c.pods[id]
	change(&p)
	c.pods[id] = p
	c.api.Put(p)
}

// standing waits until workers are as in "d1:up d2:draining".
func (c *cluster) standing(want string) {
	c.T.Helper()
	c.Eventually(want, func() bool {
		var got []string
		for _, id := range []string{"p1", "p2", "d1", "d2"} {
			if m, in := c.Gateway.Roster.Lookup(id); in {
				got = append(got, fmt.Sprint(id, ":", m.Status))
			}
		}
		return strings.Join(got, " ") == want
	})
}

// Workers are pods, found by their labels. One is deleted while it streams: the answer ends well, and no other request goes there.
// One is not ready for a while. The API server goes away, and requests are served.
func TestWorkersInPods(t *testing.T) {
	c := newCluster(t)
	for _, id := range []string{"p1", "p2"} {
		c.pod(pools.Prefill, id)
	}
	for _, id := range []string{"d1", "d2"} {
		c.pod(pools.Decode, id)
	}
	c.standing("p1:up p2:up d1:up d2:up")
	if m, _ := c.Gateway.Roster.Lookup("d1"); m.Source != "Kubernetes" || m.Worker.Incarnation != c.pods["d1"].UID ||
		m.Worker.Model != stack.SimModel {
		t.Errorf("%+v of %s", m.Worker, m.Source)
	}
	want := fleet.Answered(fleet.Long, 6)
	by := func(allowed string) {
		t.Helper()
		for range 6 {
			a := c.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 6))
			prefill, decode := c.Served(a)
			if c.Text(a) != want || !strings.Contains(allowed, prefill) || !strings.Contains(allowed, decode) || prefill == "" {
				t.Errorf("served by %q and %q, not by %q: status %d", prefill, decode, allowed, a.Status)
			}
		}
	}
	by("p1 p2 d1 d2")

	// A pod is deleted, as by a rollout, while an answer streams from it.
	streaming, deleted := make(chan struct{}), make(chan struct{})
	ended := make(chan fleet.Answer, 1)
	const tokens = 400
	go func() {
		var events int
		a, err := c.Try(context.Background(), fleet.CompletionPath, fleet.Ask(fleet.Long, tokens), func(string) {
			if events++; events == 3 {
				close(streaming)
				<-deleted
			}
		})
		if err != nil {
			t.Error(err)
		}
		ended <- a
	}()
	<-streaming
	gone, other := "d1", "d2"
	if load := c.Books(); strings.Contains(load, "d2") {
		gone, other = other, gone
	}
	c.change(gone, func(p *apitest.Pod) { p.Deleting = true; p.Unready = true })
	c.standing(strings.Replace("p1:up p2:up d1:up d2:up", gone+":up", gone+":draining", 1))
	by("p1 p2 " + other)
	close(deleted)
	if a := <-ended; a.Status != http.StatusOK || c.Text(a) != fleet.Answered(fleet.Long, tokens) {
		t.Errorf("the answer that streamed: status %d, %d bytes", a.Status, len(a.Body))
	}
	c.Idle()
	c.api.Delete(gone)
	c.Workers[gone].Kill()
	c.standing("p1:up p2:up " + other + ":up")
	by("p1 p2 " + other)

	// A pod is not ready, and is again.
	c.change("p1", func(p *apitest.Pod) { p.Unready = true })
	c.standing("p1:draining p2:up " + other + ":up")
	by("p2 " + other)
	c.change("p1", func(p *apitest.Pod) { p.Unready = false })
	c.standing("p1:up p2:up " + other + ":up")

	// The API server is away: what is known serves, and a worker that dies is taken out all the same.
	c.api.Refuse(http.StatusInternalServerError)
	c.Eventually("the API server is missed", func() bool { return c.gauge("tandem_kubernetes_up") == 0 })
	by("p1 p2 " + other)
	c.Workers["p2"].Kill()
	c.standing("p1:up " + other + ":up")
	by("p1 " + other)
	c.api.Refuse(0)
	c.Eventually("it is back", func() bool { return c.gauge("tandem_kubernetes_up") == 1 })
	c.pod(pools.Decode, gone) // another pod of the name
	c.standing("p1:up d1:up d2:up")
	by("p1 d1 d2")
	c.Idle()
}

// gauge is the value of a gauge without labels, -1 where there is none.
func (c *cluster) gauge(name string) float64 {
	families, err := c.Reg.Gather()
	if err != nil {
		c.T.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}
