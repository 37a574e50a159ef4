package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/lab/porttest"
)

// replicas is gateways, each in a process of its own, that share a NATS and workers by URL.
type replicas struct {
	t    testing.TB
	args []string
}

func newReplicas(t testing.TB, prefill, decode int) *replicas {
	t.Helper()
	server, err := natsbus.StartServer(natsbus.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	r := &replicas{t: t, args: []string{"--nats-url", server.URL(), "--replica-group", "test"}}
	for role, n := range map[string]int{"prefill": prefill, "decode": decode} {
		for i := range n {
			id := fmt.Sprintf("%s-%d", role, i+1)
			r.args = append(r.args, "--"+role+"-url", loneWorker(t, role, id)+",id="+id)
		}
	}
	return r
}

// join starts a gateway and waits until it is healthy.
func (r *replicas) join(name string) *served {
	r.t.Helper()
	s := serveProcess(r.t, append(r.args, "--replica-name", name)...)
	s.eventually(name+" is healthy", s.healthy)
	return s
}

// group is what GET /workers shows of the other gateways, and of the requests on each worker.
func (s *served) group() (peers map[string]string, requests map[string]int, theirs int) {
	s.t.Helper()
	res, err := http.Get(s.url + "/workers")
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	var report struct {
		workersReport
		Replicas []struct {
			Name, State string
			Requests    int
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&report); err != nil {
		s.t.Fatal(err)
	}
	peers, requests = map[string]string{}, map[string]int{}
	for _, p := range report.Replicas {
		peers[p.Name] = p.State
		theirs += p.Requests
	}
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			if w.Requests > 0 {
				requests[w.ID] = w.Requests
			}
		}
	}
	return peers, requests, theirs
}

// open begins n answers that last until they are ended; end returns what came of them, context.Canceled where they went on until then.
func (s *served) open(n int) (end func() []error) {
	ctx, cancel := context.WithCancel(s.t.Context())
	errs := make([]error, n)
	var all sync.WaitGroup
	for i, prompt := range prompts("Open", n) {
		all.Go(func() { errs[i] = s.stream(ctx, prompt, 100_000, func() {}).err })
	}
	return func() []error { cancel(); all.Wait(); return errs }
}

// TestReplicas has three gateways book on the same workers. Each counts what the others have booked; what a killed one had booked
// ends, and its clients alone lose anything; one that starts again knows the others' bookings before it is
// healthy; and one that stops says so.
func TestReplicas(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, 2)
	a, b, c := r.join("a"), r.join("b"), r.join("c")
	for _, s := range []*served{a, b, c} {
		s.eventually("each knows both others", func() bool {
			peers, _, _ := s.group()
			return len(peers) == 2 && !slices.Contains(slices.Collect(maps.Values(peers)), "waiting")
		})
	}
	ofA := a.open(3)
	ofB := b.open(5)
	sum := func(requests map[string]int) (n int) {
		for _, k := range requests {
			n += k
		}
		return n
	}
	for _, s := range []*served{a, b, c} {
		s.eventually("each counts all that decode", func() bool {
			_, requests, _ := s.group()
			return requests["decode-1"]+requests["decode-2"] == 8 && sum(requests) == 8
		})
	}
	// What both booked before either had heard of the other is left to chance.
	if _, requests, theirs := c.group(); requests["decode-1"] < 2 || requests["decode-1"] > 6 || theirs != 8 {
		t.Errorf("8 requests of two gateways are on the workers as %v, and %d are the others'", requests, theirs)
	}

	res, err := http.Get(c.url + "/")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	if res.Body.Close(); err != nil || !strings.Contains(string(page), "Other gateways") || !strings.Contains(string(page), `data-live="g.b.requests">5<`) {
		t.Errorf("the console does not show the other gateways: %v\n%s", err, page)
	}

	if err := b.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*served{a, c} {
		s.eventually("what b had booked has ended", func() bool {
			peers, requests, _ := s.group()
			return len(peers) == 1 && sum(requests) <= 3
		})
	}
	for _, err := range ofB() {
		if errors.Is(err, context.Canceled) {
			t.Error("an answer survived its gateway")
		}
	}
	_, _ = b.cmd.Process.Wait()

	_, before, _ := a.group()
	again := r.join("b")
	_, requests, theirs := again.group()
	if _, after, _ := a.group(); !maps.Equal(before, after) || sum(after) != 3 {
		t.Errorf("the bookings do not stay: %v, then %v", before, after)
	}
	if !maps.Equal(requests, before) || theirs != 3 {
		t.Errorf("healthy, and it counts %v, %d of them the others'; another gateway counts %v", requests, theirs, before)
	}
	for _, err := range ofA() {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a client of another gateway: %v", err)
		}
	}
	for _, s := range []*served{a, again, c} {
		s.eventually("nothing is booked", func() bool {
			_, requests, theirs := s.group()
			return len(requests) == 0 && theirs == 0
		})
	}
	c.stop()
	a.eventually("c has left", func() bool { return strings.Contains(a.logs.String(), "gateway drained and left the group") })
	again.stop()
	a.stop()
}

// TestReplicasWithoutANATS has three gateways make one NATS of those inside them: any two of them go on when the third is killed. What
// does not go together is refused by name.
func TestReplicasWithoutANATS(t *testing.T) {
	t.Parallel()
	var ports, peers []string
	for range 3 {
		port := fmt.Sprint(porttest.Free(t))
		ports, peers = append(ports, port), append(peers, "127.0.0.1:"+port)
	}
	workers := []string{"--prefill-url", loneWorker(t, "prefill", "p") + ",id=p", "--decode-url", loneWorker(t, "decode", "d") + ",id=d"}
	var gateways []*served
	for i, port := range ports {
		s := serveProcess(t, append(workers, "--replica-peers", strings.Join(peers, ","), "--replica-port", port, "--replica-name", fmt.Sprint(i))...)
		if strings.Contains(s.stdout, "run inside") {
			t.Errorf("workers are invited to a NATS that is for gateways:\n%s", s.stdout)
		}
		gateways = append(gateways, s)
	}
	know := func(n int, of []*served) {
		t.Helper()
		for _, s := range of {
			s.eventually("each knows the others", func() bool {
				peers, _, _ := s.group()
				whole := 0
				for _, state := range peers {
					if state == "whole" {
						whole++
					}
				}
				return s.healthy() && whole == n && len(peers) == n
			})
		}
	}
	know(2, gateways)
	answers := gateways[1].open(3)
	gateways[2].eventually("its bookings are known", func() bool { _, _, theirs := gateways[2].group(); return theirs == 3 })
	if err := gateways[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = gateways[0].cmd.Process.Wait()
	know(1, gateways[1:])
	for _, err := range answers() {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	gateways[2].eventually("nothing is booked", func() bool { _, requests, theirs := gateways[2].group(); return len(requests)+theirs == 0 })
	for _, c := range []struct{ args, says string }{
		{"--replica-peers h:1 --nats-url nats://h:1 --prefill-url http://h:1", "replica-peers"},
		{"--replica-peers h:1", "kubernetes-selector"},
		{"--replica-peers h --prefill-url http://h:1", "HOST:PORT"},
		{"--replica-peers h:1 --prefill-url http://h:1 --durable-kv-events", "durable-kv-events"},
		{"--replica-peers h:1 --prefill-url http://h:1 --embed-listen 0.0.0.0", "embed-password-file"},
	} {
		if status, _, stderr := inside(t, nil, append([]string{"serve"}, strings.Fields(c.args)...)...); status != exitUsage || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: status %d, %s", c.args, status, stderr)
		}
	}
}

// BenchmarkReplicasUseWorkersEvenly sends requests through three gateways in turn to equal workers. All together have to spread them as
// one would. It measures how long after the last answer their books are equal, and empty.
func BenchmarkReplicasUseWorkersEvenly(b *testing.B) {
	const workers, perSecond, n = 8, 600, 6000
	r := newReplicas(b, workers, workers)
	gateways := []*served{r.join("a"), r.join("b"), r.join("c")}
	var mu sync.Mutex // guards used
	used := map[string]int{}
	var failed atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}
	defer client.CloseIdleConnections()
	for sent := 0; sent < n; {
		<-ticks.C
		for due := min(n, int(time.Since(began).Seconds()*float64(perSecond))); sent < due; sent++ {
			to, id := gateways[sent%len(gateways)], sent
			all.Go(func() {
				body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":4,"ignore_eos":true,"prompt":"request %d is no other","nvext":{"extra_fields":["worker_id"]}}`, id)
				res, err := client.Post(to.url+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					failed.Add(1)
					return
				}
				defer res.Body.Close()
				raw, err := io.ReadAll(res.Body)
				var answer struct {
					Nvext struct {
						WorkerID struct {
							Prefill string `json:"prefill_worker_id"`
							Decode  string `json:"decode_worker_id"`
						} `json:"worker_id"`
					}
				}
				if err != nil || json.Unmarshal(raw, &answer) != nil || res.StatusCode != http.StatusOK {
					failed.Add(1)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				used[answer.Nvext.WorkerID.Prefill]++
				used[answer.Nvext.WorkerID.Decode]++
			})
		}
	}
	all.Wait()
	quiet := time.Now()
	for _, s := range gateways {
		s.eventually("nothing is booked", func() bool {
			_, requests, theirs := s.group()
			return len(requests) == 0 && theirs == 0
		})
	}
	took := time.Since(quiet)
	b.ReportMetric(float64(took.Milliseconds()), "ms-to-equal-books")
	for _, role := range []string{"prefill", "decode"} {
		least, most := n, 0
		for i := range workers {
			k := used[fmt.Sprintf("%s-%d", role, i+1)]
			least, most = min(least, k), max(most, k)
		}
		uneven := float64(most-least) * workers / float64(n)
		b.ReportMetric(uneven, role+"-(max-min)/mean")
		if uneven > 0.15 {
			b.Errorf("%s workers had %d to %d: (max - min) / mean is %.2f", role, least, most, uneven)
		}
	}
	if failed.Load() > 0 {
		b.Errorf("%d of %d requests failed", failed.Load(), n)
	}
}
