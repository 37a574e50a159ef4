package operations

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery/kubernetes"
)

// A workers file brings workers and changes them while requests run; a mistake in it changes none.
func TestWorkersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	rewrite := func(data string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(data), 0o644))
		require.NoError(t, os.Rename(path+".new", path))
	}
	rewrite("[]\n")
	cfg := fleet.GatewayConfig()
	cfg.Workers.File, cfg.Workers.MinInitial = path, 2
	f := fleet.NewStatic(t, cfg)
	f.Refused(f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 6)), http.StatusServiceUnavailable, "starting", "", "0 of 2 workers")
	entry := func(role pools.Role, id string) string {
		return fmt.Sprintf("- url: %s\n  role: %s\n  id: %s\n", f.Serve(role, id, 0), role, id)
	}
	p1, p2, d1 := entry(pools.Prefill, "p1"), entry(pools.Prefill, "p2"), entry(pools.Decode, "d1")
	rewrite(p1 + d1)
	f.Healthy()
	rewrite(p2 + d1)
	require.NoError(t, f.Gateway.Reload()) // as SIGHUP does; a change alone is seen as well
	f.Eventually("served by the new one", func() bool { by, _ := f.Served(f.Exact(fleet.Long, 4)); return by == "p2" })
	rewrite(p1 + d1 + "- url: nowhere\n")
	require.ErrorContains(t, f.Gateway.Reload(), "workers.yaml:7 url")
	if by, _ := f.Served(f.Exact(fleet.Long, 4)); by != "p2" {
		t.Errorf("a broken file changed the workers: served by %q", by)
	}
	f.Idle()
}

// A worker that cannot hand its cache over never gets a request, and /health has the reason.
func TestWorkersWithoutAHandOffShowInHealth(t *testing.T) {
	f := fleet.New(t, fleet.Options{Alone: true})
	w := pools.Worker{ID: "w", Model: "m", Role: pools.Decode, Engine: "vllm", Connector: "pigeon", Address: "http://127.0.0.1:1",
		BlockSize: 16}
	require.Error(t, f.Gateway.Roster.Put(w))
	var health struct {
		Detail struct{ Refused []struct{ ID, Reason string } }
	}
	f.Get("/health", &health)
	if r := health.Detail.Refused; f.Status("/health") != http.StatusServiceUnavailable || len(r) != 1 ||
		!strings.Contains(r[0].Reason, "role both") {
		t.Errorf("%+v", health)
	}
}

// newNames makes this process use the test's name server, which returns one address for every name.
func newNames(t *testing.T) *atomic.Pointer[netip.Addr] {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	at, ended := new(atomic.Pointer[netip.Addr]), make(chan struct{})
	go func() {
		defer close(ended)
		for query := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			end := 12
			for end < n && query[end] != 0 { // the labels of the name
				end += 1 + int(query[end])
			}
			if end += 5; end > n {
				continue
			}
			answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
			if binary.BigEndian.Uint16(query[end-4:]) == 1 { // an A record of the name above, for no time at all
				answer[7] = 1
				answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				answer = append(answer, at.Load().AsSlice()...)
			}
			_, _ = server.WriteTo(answer, from)
		}
	}()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		_ = server.Close()
		<-ended
	})
	return at
}

// A worker whose name moves to another address is called there, whether its old address refuses or is
// silent; no answer fails meanwhile.
func TestNamesMove(t *testing.T) {
	for name, state := range map[string]testkit.LinkState{
		"refuses": {Refuse: true}, "is silent": {Up: testkit.Way{Hole: true}, Down: testkit.Way{Hole: true}},
	} {
		t.Run("the old address "+name, func(t *testing.T) {
			names := newNames(t)
			old, next := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
			names.Store(&old)
			p, d, behind := fleet.FreePort(t), fleet.FreePort(t), fleet.FreePort(t)
			link, err := testkit.NewLink(fmt.Sprintf("127.0.0.1:%d", behind))
			require.NoError(t, err)
			t.Cleanup(link.Close)
			port := netip.MustParseAddrPort(link.Addr()).Port()
			cfg := fleet.GatewayConfig()
			cfg.Decode.FirstTokenTimeout, cfg.Breakers.OpenFor = 300*time.Millisecond, 300*time.Millisecond
			cfg.Workers.Static = append(cfg.Workers.Static,
				fleet.Endpoint(t, pools.Prefill, fmt.Sprintf("http://127.0.0.1:%d,id=prefill-1", p)),
				fleet.Endpoint(t, pools.Decode, fmt.Sprintf("http://127.0.0.1:%d,id=decode-1", d)),
				fleet.Endpoint(t, pools.Decode, fmt.Sprintf("http://engine.test:%d,id=moved", port)))
			cfg.Workers.MinInitial = 3
			f := fleet.NewStatic(t, cfg)
			f.Serve(pools.Prefill, "prefill-1", p)
			f.Serve(pools.Decode, "decode-1", d)
			f.Serve(pools.Decode, "moved", behind)
			f.Healthy()
			n := 0
			by := func() string {
				t.Helper()
				n++
				_, d := f.Served(f.Exact(fmt.Sprint(n, fleet.Long), 6))
				return d
			}
			f.Eventually("it serves", func() bool { return by() == "moved" })
			gone := f.Workers["moved"]
			names.Store(&next)
			w, err := fleet.NewWorker(t, devfleet.WorkerConfig{
				Engine: engine.Config{Role: "decode", ID: "moved", Speedup: 20, BlockSize: 32, TotalKVBlocks: 10_000},
				Host:   next.String(), Port: int(port), ModelInput: "text", Drain: time.Second,
			})
			require.NoError(t, err)
			f.Run("moved", w)
			link.Set(state)
			if state.Refuse {
				link.Cut()
			}
			f.Eventually("it serves at its new address", func() bool { return by() == "moved" })
			gone.Kill()
			f.Idle()
		})
	}
}

// A worker that returns under its id with an empty cache counts as empty, by its
// events, by prediction, or by what was sent to it a moment ago.
func TestWorkersReturnEmpty(t *testing.T) {
	prompt := strings.Repeat(fleet.Long, 4)
	check := func(t *testing.T, f *fleet.Fleet, back func(holder string)) {
		t.Helper()
		round := func() (prefill string, cached int, overlap string) {
			t.Helper()
			a := f.Exact(prompt, 6)
			prefill, _ = f.Served(a)
			for _, e := range a.Events[:len(a.Events)-1] {
				if u := f.Parse([]byte(e)).Usage; u != nil && u.Details != nil {
					cached = u.Details.Cached
				}
			}
			id := a.Header.Get("X-Request-Id")
			f.Eventually("its log line is there", func() bool { return f.OverlapOf(id) != "" })
			return prefill, cached, f.OverlapOf(id)
		}
		holder, _, _ := round()
		f.Eventually("its prefix is known", func() bool { by, _, n := round(); return by == holder && n != "0" })
		f.Idle()
		back(holder)
		if by, cached, overlap := round(); overlap != "0" {
			t.Errorf("%s blocks were counted on %s, which had %d tokens; %s is another process", overlap, by, cached, holder)
		}
		f.Idle()
	}
	for name, gateway := range map[string]func(c *stack.GatewayConfig){"by its events": nil, "by prediction": fleet.WithoutEvents} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			o := fleet.Options{Prefill: 2, Decode: 1, Gateway: gateway}
			f := fleet.New(t, o)
			check(t, f, func(holder string) {
				f.Workers[holder].Kill()
				f.Start(pools.Prefill, holder, o, slog.New(slog.DiscardHandler))
				f.Eventually("the roster's change has reached its view", func() bool { return f.Sources()[holder].Blocks == 0 })
			})
		})
	}
	fleet.VirtualRun(t, "by its URL", func(t *testing.T) {
		f, ports := fleet.NewByURL(t, fleet.GatewayConfig(), nil)
		check(t, f, func(holder string) {
			before, _ := f.Gateway.Roster.Lookup(holder)
			f.Workers[holder].Kill()
			f.Serve(pools.Prefill, holder, ports[holder])
			f.Eventually("it is another process", func() bool {
				now, in := f.Gateway.Roster.Lookup(holder)
				return in && now.Worker.Incarnation != before.Worker.Incarnation
			})
		})
	})
}

// A pair that returns under its ids with another model computes nothing of the old one: its requests, which continue
// all the while, are the other pair's, and get a typed error once that has gone. Requests of the new model are served.
func TestWorkersReturnWithAnotherModel(t *testing.T) {
	const other = "other-sim"
	check := func(t *testing.T, f *fleet.Fleet, back func(role pools.Role, id string)) {
		t.Helper()
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var group sync.WaitGroup
		var changed atomic.Bool // the pair has another model
		var answered atomic.Int64
		for i := range 4 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					prompt := fmt.Sprint(i, n, fleet.Long)
					late := changed.Load()
					a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(prompt, 40), nil)
					if err != nil || a.Status != http.StatusOK || f.Text(a) != fleet.Answered(prompt, 40) {
						t.Errorf("%v, status %d, %s %q", err, a.Status, a.Body, a.Events)
						return
					}
					answered.Add(1)
					if p, d := f.Served(a); late && (p == "prefill-1" || d == "decode-1") {
						t.Errorf("the old model was served by %q and %q", p, d)
					}
				}
			})
		}
		f.Eventually("both pairs are at work", func() bool {
			return f.Value("tandem_frontend_worker_requests", "prefill-1")+f.Value("tandem_frontend_worker_requests", "decode-1") > 0
		})
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} { // one after the other: both at once are two faults
			id := string(role) + "-1"
			f.Workers[id].Kill()
			back(role, id)
			f.Eventually(id+" has another model", func() bool {
				m, in := f.Gateway.Roster.Lookup(id)
				return in && m.Worker.Model == other
			})
			n := answered.Load()
			f.Eventually("what began before has ended", func() bool { return answered.Load() >= n+8 || t.Failed() })
		}
		changed.Store(true)
		a := f.Post(fleet.CompletionPath, strings.Replace(fleet.Ask(fleet.Long, 6), stack.SimModel, other, 1))
		if p, d := f.Served(a); p != "prefill-1" || d != "decode-1" || f.Text(a) != fleet.Answered(fleet.Long, 6) {
			t.Errorf("the new model was served by %q and %q: %q", p, d, f.Text(a))
		}
		stop()
		group.Wait()
		f.Workers["prefill-2"].Kill()
		f.Workers["decode-2"].Kill()
		for _, code := range []string{"refused", "no_worker"} { // the first finds the other pair dead
			a = f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 6))
			f.Refused(a, http.StatusServiceUnavailable, code, "")
		}
		f.Eventually("what lives holds nothing", func() bool { return f.Books() == "" })
	}
	fleet.VirtualRun(t, "by the registry", func(t *testing.T) {
		f := fleet.New(t, fleet.Options{})
		check(t, f, func(role pools.Role, id string) {
			f.Start(role, id, fleet.Options{Speedup: 20, Worker: func(c *devfleet.WorkerConfig) { c.Engine.Model = other }},
				slog.New(slog.DiscardHandler))
		})
	})
	fleet.VirtualRun(t, "by their URLs", func(t *testing.T) {
		f, ports := fleet.NewByURL(t, fleet.GatewayConfig(), nil)
		check(t, f, func(role pools.Role, id string) {
			f.Eventually("the port is free", func() bool {
				w, err := fleet.NewWorker(t, devfleet.WorkerConfig{
					Engine: engine.Config{Role: string(role), ID: id, Model: other, Speedup: 20, BlockSize: 32, TotalKVBlocks: 10_000},
					Host:   "127.0.0.1", Port: ports[id], ModelInput: "text", Drain: time.Second,
				})
				if err == nil {
					f.Run(id, w)
				}
				return err == nil
			})
		})
	})
}

// cluster is a fleet whose workers are pods.
type cluster struct {
	*fleet.Fleet
	api  *testkit.Kubernetes
	pods map[string]testkit.Pod
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{api: testkit.NewKubernetes(t), pods: map[string]testkit.Pod{}}
	cfg := fleet.GatewayConfig()
	cfg.Workers.Kubernetes = kubernetes.Config{
		Selector: "app=llm", Server: c.api.URL(), Account: c.api.Account, Retry: guard.Backoff{Min: 1e6, Max: 2e7},
	}
	c.Fleet = fleet.NewStatic(t, cfg)
	return c
}

// pod runs an engine in a pod that is ready.
func (c *cluster) pod(role pools.Role, id string) {
	c.T.Helper()
	at, err := url.Parse(c.Serve(role, id, 0))
	require.NoError(c.T, err)
	port, _ := strconv.Atoi(at.Port())
	c.pods[id] = testkit.Pod{
		Name: id, UID: fmt.Sprintf("uid-%s-%d", id, port), Labels: map[string]string{"app": "llm", "tandem.dev/role": string(role)},
		Ports: map[string]int{"http": port},
	}
	c.api.Put(c.pods[id])
}

// change changes a pod.
func (c *cluster) change(id string, change func(p *testkit.Pod)) {
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

// Workers are pods, found by their labels. One is deleted while it streams: the answer ends well, and no other request
// goes there. One is not ready for a while. The API server goes away, and requests are served.
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
	by := func(allowed string) {
		t.Helper()
		for range 6 {
			prefill, decode := c.Served(c.Exact(fleet.Long, 6))
			assert.NotEmpty(t, prefill, "decode prefilled by itself")
			assert.Contains(t, allowed, prefill)
			assert.Contains(t, allowed, decode)
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
		assert.NoError(t, err)
		ended <- a
	}()
	<-streaming
	gone, other := "d1", "d2"
	if load := c.Books(); strings.Contains(load, "d2") {
		gone, other = other, gone
	}
	c.change(gone, func(p *testkit.Pod) { p.Deleting = true; p.Unready = true })
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
	c.change("p1", func(p *testkit.Pod) { p.Unready = true })
	c.standing("p1:draining p2:up " + other + ":up")
	by("p2 " + other)
	c.change("p1", func(p *testkit.Pod) { p.Unready = false })
	c.standing("p1:up p2:up " + other + ":up")

	// The API server is down: known workers serve, and a worker that dies is removed all the same.
	c.api.Refuse(http.StatusInternalServerError)
	c.Eventually("the API server is missed", func() bool { return c.Value("tandem_kubernetes_up") == 0 })
	by("p1 p2 " + other)
	c.Workers["p2"].Kill()
	c.standing("p1:up " + other + ":up")
	by("p1 " + other)
	c.api.Refuse(0)
	c.Eventually("it is back", func() bool { return c.Value("tandem_kubernetes_up") == 1 })
	c.pod(pools.Decode, gone) // another pod of the name
	c.standing("p1:up d1:up d2:up")
	by("p1 d1 d2")
	c.Idle()
}
