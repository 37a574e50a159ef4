package real

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/porttest"
	"github.com/tandem-pd/tandem/lab/zmqpub"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// asServer has the test's program be one of the two servers, in a process of its own that can be killed.
const asServer = "TANDEM_E2E_SERVER"

// serveAs is that process. It ends when its input does.
func serveAs(what string) error {
	name, rest, _ := strings.Cut(what, " ")
	number, dir, _ := strings.Cut(rest, " ")
	port, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	switch name {
	case "nats":
		s, err := natsbus.StartServer(natsbus.ServerConfig{Port: port})
		if err != nil {
			return err
		}
		defer s.Close()
	case "jetstream":
		s, err := natsbus.StartServer(natsbus.ServerConfig{Port: port, JetStream: true, Dir: dir})
		if err != nil {
			return err
		}
		defer s.Close()
	case "etcd":
		s, err := discovery.StartEtcd(discovery.EtcdConfig{Dir: dir, Port: port, Sync: true})
		if err != nil {
			return err
		}
		defer s.Close()
	default:
		return fmt.Errorf("no server is called %q", name)
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// server is NATS or etcd as a process that can be killed and started again at the same address, etcd with what it had.
type server struct {
	t    *testing.T
	what string
	cmd  *exec.Cmd
	in   io.Closer
}

func newServer(t *testing.T, what string) *server {
	t.Helper()
	s := &server{t: t, what: what}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = append(os.Environ(), asServer+"="+s.what)
	s.cmd.Stderr = os.Stderr
	in, err := s.cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.in = in
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		s.t.Fatalf("%s did not come up: %q, %v", s.what, line, err)
	}
}

// kill is kill -9. A second time it does nothing.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = s.in.Close()
	s.cmd = nil
}

// linked is a gateway with real NATS and etcd, and what workers need to join it.
type linked struct {
	*fleet.Fleet
	t          *testing.T
	etcd, nats *server
	endpoints  []string
	url        string
	ttl        time.Duration
}

// newLinked starts both servers and a gateway without workers.
func newLinked(t *testing.T, ttl time.Duration) *linked {
	t.Helper()
	natsPort, etcdPort := porttest.Free(t), porttest.Free(t)
	l := &linked{
		nats: newServer(t, fmt.Sprintf("nats %d", natsPort)), etcd: newServer(t, fmt.Sprintf("etcd %d %s", etcdPort, t.TempDir())),
		endpoints: []string{fmt.Sprintf("http://127.0.0.1:%d", etcdPort)}, url: fmt.Sprintf("nats://127.0.0.1:%d", natsPort), ttl: ttl,
		t: t,
	}
	cfg := fleet.GatewayConfig()
	cfg.LeaseTTL = ttl
	l.Fleet = fleet.Bare(t, cfg, l.connect("gateway"), slog.LevelInfo)
	l.RunGateway()
	return l
}

// connect makes links of one process of the fleet; they end with the test.
func (l *linked) connect(name string) stack.Links {
	l.t.Helper()
	return fleet.Links(l.t, &stack.Discovery{EtcdEndpoints: l.endpoints, NATSURL: l.url}, name)
}

// join adds a worker that registers in etcd and tells its KV events as how says.
func (l *linked) join(role pools.Role, id string, how devfleet.WorkerEvents) {
	l.T.Helper()
	w, err := devfleet.NewWorker(devfleet.WorkerConfig{
		Engine: engine.Config{Role: string(role), ID: id, Speedup: 50, BlockSize: 16, TotalKVBlocks: 20_000},
		Host:   "127.0.0.1", ModelInput: "text", Drain: time.Second, LeaseTTL: l.ttl, KVEvents: how,
	}, l.connect(id), slog.New(slog.DiscardHandler))
	if err != nil {
		l.T.Fatal(err)
	}
	l.Run(id, w)
}

// overZMQ publishes as stock vLLM does, on free ports.
func overZMQ(t *testing.T) devfleet.WorkerEvents {
	return devfleet.WorkerEvents{ZMQ: &zmqpub.Config{
		Endpoint: fmt.Sprintf("tcp://*:%d", porttest.Free(t)), ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", porttest.Free(t)),
		Topic: "kv-events",
	}}
}

// listed are the workers of the roster, each as often as it is there.
func (l *linked) listed() map[string]int {
	var report struct {
		Pools []struct{ Workers []struct{ ID string } }
	}
	l.Get("/workers", &report)
	n := map[string]int{}
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			n[w.ID]++
		}
	}
	return n
}

// exact says whether every worker is listed once, and its view live and of as many blocks as its engine has cached.
func (l *linked) exact(ids ...string) bool {
	listed, sources := l.listed(), l.Sources()
	for _, id := range ids {
		if s := sources[id]; listed[id] != 1 || s.State != "live" || s.Blocks != l.Workers[id].Engine.Books().Blocks.Cached {
			return false
		}
	}
	return len(listed) == len(ids) && len(sources) == len(ids)
}

// load asks without end, new prompts and old ones, until the returned func is called, which tells how many were asked
// and which went wrong.
func (l *linked) load() (stop func() (asked int64, err error)) {
	var asked atomic.Int64
	var mu sync.Mutex // guards wrong
	var wrong []error
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for lane := range 4 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				prompt := fmt.Sprintf("lane %d, talk %d: %s", lane, n/4, strings.Repeat("and so on ", 20+10*(n%4)))
				a, err := l.Try(context.Background(), fleet.CompletionPath, fleet.Ask(prompt, 8), nil)
				if err == nil && a.Status != http.StatusOK {
					err = fmt.Errorf("status %d: %s", a.Status, a.Body)
				}
				if err != nil {
					mu.Lock()
					wrong = append(wrong, err)
					mu.Unlock()
				}
				asked.Add(1)
			}
		})
	}
	return func() (int64, error) {
		cancel()
		all.Wait()
		return asked.Load(), errors.Join(wrong...)
	}
}

// NATS is killed, then it and etcd for longer than a lease, and each started again where it was, under load. Every request is
// answered, nobody leaves the roster, and in the end each worker is there once and its view is live with as many blocks as its
// engine holds. The workers tell their KV events over NATS, but one over ZMQ, as its record in etcd says.
func TestServersKilledUnderLoad(t *testing.T) {
	t.Parallel() // it waits for leases
	const ttl = 2 * time.Second
	l := newLinked(t, ttl)
	ids := []string{"p1", "p2", "p3", "d1", "d2"}
	l.join(pools.Prefill, "p1", devfleet.WorkerEvents{})
	l.join(pools.Prefill, "p2", devfleet.WorkerEvents{})
	l.join(pools.Prefill, "p3", overZMQ(t))
	l.join(pools.Decode, "d1", devfleet.WorkerEvents{})
	l.join(pools.Decode, "d2", devfleet.WorkerEvents{})
	l.Eventually("all have joined and are followed", func() bool { return l.exact(ids...) })
	if s := l.Sources(); s["p3"].Transport != "zmq" || s["p1"].Transport != "nats" {
		t.Fatalf("p3 is followed over %s, p1 over %s", s["p3"].Transport, s["p1"].Transport)
	}

	for _, outage := range []struct {
		name    string
		servers []*server
		last    time.Duration
	}{
		{"NATS", []*server{l.nats}, ttl / 4},
		{"both for longer than a lease", []*server{l.nats, l.etcd}, ttl + time.Second},
	} {
		stop := l.load()
		for _, s := range outage.servers {
			s.kill()
		}
		listedFor := func(what string, d time.Duration) {
			over := time.Now().Add(d)
			l.Eventually(what, func() bool {
				for _, id := range ids {
					if l.listed()[id] != 1 {
						t.Errorf("%s: %s is not in the roster", what, id)
					}
				}
				return t.Failed() || time.Now().After(over)
			})
		}
		listedFor(outage.name+" is away for its time", outage.last)
		for _, s := range outage.servers {
			s.start()
		}
		listedFor(outage.name+" is back for as long as an old lease could still end", ttl+time.Second)
		l.Eventually("answers and views agree after "+outage.name, func() bool { // which takes answers: views were stale meanwhile
			return !slices.ContainsFunc(ids, func(id string) bool { return l.Sources()[id].Reason == "parity" })
		})
		asked, err := stop()
		if err != nil || asked == 0 {
			t.Fatalf("%s: of %d requests went wrong: %v", outage.name, asked, err)
		}
		t.Logf("%s: %d requests, all answered", outage.name, asked)
		l.Idle()
		l.Eventually("all is exact after "+outage.name, func() bool { return l.exact(ids...) })
	}
	// The watch goes on: who leaves is gone, and who joins is there.
	l.join(pools.Decode, "d3", overZMQ(t))
	l.Eventually("a new one joins", func() bool { return l.exact(append(ids, "d3")...) })
}

// TestMain makes the process a server where it is the child of a test.
func TestMain(m *testing.M) {
	if what := os.Getenv(asServer); what != "" {
		if err := serveAs(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(fleet.Main(m))
}
