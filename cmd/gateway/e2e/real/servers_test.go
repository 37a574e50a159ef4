package real

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/testkit"
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
	require.NoError(s.t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, s.cmd.Start())
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

// patient is a gateway for which a machine that stands still for a while is no silent worker.
func patient() stack.GatewayConfig {
	cfg := fleet.GatewayConfig()
	cfg.Prefill.Timeout = time.Minute
	cfg.Decode.FirstTokenTimeout, cfg.Decode.StreamIdleTimeout = time.Minute, time.Minute
	return cfg
}

// linked is a gateway with real NATS and etcd, and what workers need to join it.
type linked struct {
	*fleet.Fleet
	t          *testing.T
	etcd, nats *server
	endpoints  []string
	url        string
	ttl        time.Duration
	loads      int
}

// newLinked starts both servers and a gateway without workers.
func newLinked(t *testing.T, ttl time.Duration) *linked {
	t.Helper()
	natsPort, etcdPort := testkit.FreePort(t), testkit.FreePort(t)
	l := &linked{
		nats: newServer(t, fmt.Sprintf("nats %d", natsPort)), etcd: newServer(t, fmt.Sprintf("etcd %d %s", etcdPort, t.TempDir())),
		endpoints: []string{fmt.Sprintf("http://127.0.0.1:%d", etcdPort)}, url: fmt.Sprintf("nats://127.0.0.1:%d", natsPort), ttl: ttl,
		t: t,
	}
	cfg := patient()
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

// join adds a worker that registers in etcd and publishes its KV events by how.
func (l *linked) join(role pools.Role, id string, how devfleet.WorkerEvents) {
	l.T.Helper()
	w, err := devfleet.NewWorker(devfleet.WorkerConfig{
		Engine: engine.Config{Role: string(role), ID: id, Speedup: 50, BlockSize: 16, TotalKVBlocks: 20_000},
		Host:   "127.0.0.1", ModelInput: "text", Drain: time.Second, LeaseTTL: l.ttl, KVEvents: how,
	}, l.connect(id), slog.New(slog.DiscardHandler))
	require.NoError(l.T, err)
	l.Run(id, w)
}

// overZMQ publishes as stock vLLM does, on free ports.
func overZMQ(t *testing.T) devfleet.WorkerEvents {
	return devfleet.WorkerEvents{ZMQ: &engine.PublisherConfig{
		Endpoint: fmt.Sprintf("tcp://*:%d", testkit.FreePort(t)), ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", testkit.FreePort(t)),
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

// exact reports whether every worker is listed once, and its view live and of as many blocks as its engine has cached.
func (l *linked) exact(ids ...string) bool {
	listed, sources := l.listed(), l.Sources()
	for _, id := range ids {
		if s := sources[id]; listed[id] != 1 || s.State != "live" || s.Blocks != l.Workers[id].Engine.Books().Blocks.Cached {
			return false
		}
	}
	return len(listed) == len(ids) && len(sources) == len(ids)
}

// load sends requests without end, new prompts and old ones, until the returned func is called, which returns how many
// were sent and which went wrong.
func (l *linked) load() (stop func() (asked int64, err error)) {
	var asked atomic.Int64
	var mu sync.Mutex // guards wrong
	var wrong []error
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	l.loads++ // of new prompts, which reach all workers
	for lane := range 4 {
		all.Go(func() {
			for n := 0; n == 0 || ctx.Err() == nil; n++ {
				<-time.After(5 * time.Millisecond)
				prompt := fmt.Sprintf("load %d, lane %d, talk %d: %s", l.loads, lane, n/4, strings.Repeat("and so on ", 20+10*(n%4)))
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

// NATS is killed, then it and etcd for longer than a lease, and each started again where it was, under load. Every
// request is answered, no worker leaves the roster, and in the end each worker is there once and its view is live with
// as many blocks as its engine holds. The workers publish their KV events over NATS, but one over ZMQ, as registered in
// etcd.
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
		name       string
		servers    []*server
		away, back time.Duration // back is for as long as an old lease could still end
	}{
		{"NATS", []*server{l.nats}, ttl / 4, 0},
		{"both for longer than a lease", []*server{l.nats, l.etcd}, ttl + time.Second/2, ttl + time.Second/2},
	} {
		stop := l.load()
		for _, s := range outage.servers {
			s.kill()
		}
		listedFor := func(d time.Duration) {
			for over := time.Now().Add(d); time.Now().Before(over); <-time.After(20 * time.Millisecond) {
				require.Equal(t, map[string]int{"p1": 1, "p2": 1, "p3": 1, "d1": 1, "d2": 1}, l.listed(), "%s: the roster", outage.name)
			}
		}
		listedFor(outage.away)
		for _, s := range outage.servers {
			s.start()
		}
		listedFor(outage.back)
		l.Eventually("all is exact after "+outage.name, func() bool {
			asked, err := stop()
			require.NoError(t, err, outage.name)
			require.NotZero(t, asked, outage.name)
			l.Idle()
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
				if l.exact(ids...) {
					return true
				}
			}
			stop = l.load() // a view that was stale under the last answers is trusted again after others
			<-time.After(500 * time.Millisecond)
			return false
		})
	}
	// The watch continues: workers that leave are gone, and new ones are there.
	l.join(pools.Decode, "d3", overZMQ(t))
	l.Eventually("a new one joins", func() bool { return l.exact(append(ids, "d3")...) })
}

// TestMain makes the process a server where it is the child of a test.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // its tests wait for leases and for servers more than they compute
	if what := os.Getenv(asServer); what != "" {
		if err := serveAs(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(fleet.Main(m))
}

// operated is gateways of one fleet, with the server that keeps what operators change.
type operated struct {
	t      *testing.T
	server *server
	link   func(name string) stack.Links
	put    func(kind, name, value string) // writes an entry as a stranger would; an empty value removes it
	has    func(kind, name string) bool   // whether there is an entry
}

// overEtcd keeps in etcd.
func overEtcd(t *testing.T) *operated {
	port := testkit.FreePort(t)
	o := &operated{t: t, server: newServer(t, fmt.Sprintf("etcd %d %s", port, t.TempDir()))}
	o.link = func(name string) stack.Links {
		return fleet.Links(t, &stack.Discovery{EtcdEndpoints: []string{fmt.Sprintf("http://127.0.0.1:%d", port)}}, name)
	}
	client := o.link("stranger").Etcd
	key := func(kind, name string) string {
		return strings.TrimSuffix(discovery.DefaultPrefix, "/") + "-state/" + kind + "/" + url.PathEscape(name)
	}
	o.put = func(kind, name, value string) {
		var err error
		if value == "" {
			_, err = client.Delete(t.Context(), key(kind, name))
		} else {
			_, err = client.Put(t.Context(), key(kind, name), value)
		}
		require.NoError(t, err)
	}
	o.has = func(kind, name string) bool {
		r, err := client.Get(t.Context(), key(kind, name))
		require.NoError(t, err)
		return len(r.Kvs) > 0
	}
	return o
}

// overJetStream keeps in NATS; there is no etcd.
func overJetStream(t *testing.T) *operated {
	port := testkit.FreePort(t)
	o := &operated{t: t, server: newServer(t, fmt.Sprintf("jetstream %d %s", port, t.TempDir()))}
	address := fmt.Sprintf("nats://127.0.0.1:%d", port)
	o.link = func(string) stack.Links {
		return stack.Links{Group: fleet.Join(t, address)}
	}
	conn, err := nats.Connect(address, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	bucket := func() jetstream.KeyValue {
		kv, err := js.KeyValue(t.Context(), "TANDEM_STATE_tandem_workers")
		require.NoError(t, err)
		return kv
	}
	key := func(kind, name string) string { return kind + "." + base64.RawURLEncoding.EncodeToString([]byte(name)) }
	o.put = func(kind, name, value string) {
		if value == "" {
			err = bucket().Delete(t.Context(), key(kind, name))
		} else {
			_, err = bucket().PutString(t.Context(), key(kind, name), value)
		}
		require.NoError(t, err)
	}
	o.has = func(kind, name string) bool { _, err := bucket().Get(t.Context(), key(kind, name)); return err == nil }
	return o
}

// gateway starts one, with workers that it is given by hand.
func (o *operated) gateway(name string, workers ...string) (f *fleet.Fleet, stop func()) {
	o.t.Helper()
	cfg := patient()
	cfg.Prefix = strings.TrimSuffix(discovery.DefaultPrefix, "/")
	cfg.Replicas.Complete(cfg.Prefix)
	cfg.Replicas.Name, cfg.Router.Thresholds.PrefillTokens = name, 9000
	f = fleet.Bare(o.t, cfg, o.link(name), slog.LevelInfo)
	for _, id := range workers {
		f.Put(pools.Worker{ID: id, Incarnation: "1", Model: "org/model", Role: pools.Both, Engine: "sim",
			Address: "http://127.0.0.1:9", BlockSize: 16})
	}
	stop = f.RunGateway()
	f.Eventually(name+" has started", func() bool { return !strings.Contains(healthOf(f), `"starting"`) })
	return f, stop
}

// health is the body of GET /health.
func healthOf(f *fleet.Fleet) string {
	var body json.RawMessage
	f.Get("/health", &body)
	return string(body)
}

// cordons is the ids that an operator keeps out.
func cordonsOf(f *fleet.Fleet) []string {
	var report struct{ Cordoned []string }
	f.Get("/workers", &report)
	return report.Cordoned
}

// threshold is the model's thresholds.
func thresholdOf(f *fleet.Fleet) string {
	b, text := f.Gateway.Thresholds()[0], ""
	if b.DecodeBlocks != nil {
		text = fmt.Sprint(*b.DecodeBlocks)
	}
	if b.PrefillTokens != nil {
		text += fmt.Sprint(" ", *b.PrefillTokens)
	}
	return text
}

// operate posts an operator's change and returns whether it is kept.
func operate(f *fleet.Fleet, path, body string) string {
	f.T.Helper()
	a := f.Post(path, body)
	var got struct{ Kept string }
	require.True(f.T, json.Unmarshal(a.Body, &got) == nil && a.Status == http.StatusOK,
		"%s: status %d: %s", path, a.Status, a.Body)
	return got.Kept
}

// TestChangesAreKept: what an operator changes at one gateway counts at the others, also with the server away
// meanwhile, and after all have been restarted. What strangers write does no harm.
func TestChangesAreKept(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(*testing.T) *operated{"etcd": overEtcd, "JetStream": overJetStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for a server's restart
			o := over(t)
			workers := []string{"w1", "w2", "w3"}
			a, stopA := o.gateway("a", workers...)
			b, stopB := o.gateway("b", workers...)
			cordoned := func(f *fleet.Fleet, ids ...string) func() bool {
				return func() bool { return slices.Equal(cordonsOf(f), ids) }
			}
			assert.Equal(t, "yes", operate(a, "/workers/w1/cordon", ""), "kept")
			b.Eventually("b knows of a's cordon", cordoned(b, "w1"))
			assert.Equal(t, "yes", operate(b, "/busy_threshold", `{"model":"org/model","active_decode_blocks_threshold":0.5}`),
				"kept")
			a.Eventually("a knows of b's thresholds", func() bool { return thresholdOf(a) == "0.5 9000" })

			o.put("cordons", "w2", "{no object")
			o.put("cordons", "w 2/../3", `{}`)
			o.put("cordons", "w3", `{"move":"yes"}`)
			o.put("cordons", "w2", strings.Repeat(" ", 4000))
			o.put("thresholds", "org/model", `{"active_decode_blocks_threshold":7}`)
			o.put("more", "of a later release", `{}`)
			o.put("cordons", "absent", `{"later":[1,2]}`)
			for _, f := range []*fleet.Fleet{a, b} {
				f.Eventually("the last of a stranger's entries is read", cordoned(f, "absent", "w1"))
				assert.Equal(t, 5, strings.Count(f.Logs.String(), "ignored"), "entries are passed over, want 5")
				assert.Equal(t, "0.5 9000", thresholdOf(f), "a stranger's threshold made it")
			}
			o.put("cordons", "absent", "")
			o.put("cordons", "w2", "")
			o.put("cordons", "w3", "")
			b.Eventually("a cordon that is removed by hand ends", cordoned(b, "w1"))

			o.server.kill()
			assert.Equal(t, "later", operate(a, "/workers/w2/cordon", ""), "kept")
			assert.Equal(t, []string{"w1", "w2"}, cordonsOf(a))
			assert.Equal(t, "later", operate(b, "/workers/w1/uncordon", ""), "kept")
			assert.Empty(t, cordonsOf(b))
			c, stopC := o.gateway("c", workers...)
			assert.Contains(t, c.Logs.String(), "continuing without them", "c does not report that it has not read them")
			o.server.start()
			for _, f := range []*fleet.Fleet{a, b, c} {
				f.Eventually("all agree once the server is back", cordoned(f, "w2"))
			}
			for _, stop := range []func(){stopA, stopB, stopC} {
				stop()
			}

			d, _ := o.gateway("d", workers...)
			assert.Equal(t, []string{"w2"}, cordonsOf(d), "cordoned after a restart")
			// The stranger's threshold is what the store has: the settings' are in force again.
			assert.Equal(t, " 9000", thresholdOf(d), "after a restart the thresholds")
			assert.Equal(t, "yes", operate(d, "/busy_threshold", `{"model":"org/model","active_decode_blocks_threshold":null}`), "kept")
			assert.False(t, o.has("thresholds", "org/model"), "the settings' own thresholds are kept")
			assert.Equal(t, "yes", operate(d, "/workers/w2/uncordon", ""), "kept")
			assert.False(t, o.has("cordons", "w2"), "the key of no cordon is there")
		})
	}
}

// TestChangesAreNotKept: with neither server the answer reports it.
func TestChangesAreNotKept(t *testing.T) {
	o := &operated{t: t, link: func(string) stack.Links { return stack.Links{} }}
	f, _ := o.gateway("alone", "w1")
	assert.Equal(t, "no", operate(f, "/workers/w1/cordon", ""), "kept")
	assert.Equal(t, "no", operate(f, "/busy_threshold", `{"model":"org/model","active_decode_blocks_threshold":0.5}`), "kept")
}

// TestMovesOfAllGateways: a drain with move at one gateway moves the streams of the others too.
func TestMovesOfAllGateways(t *testing.T) {
	t.Parallel() // it waits for a server's start
	l := newLinked(t, 5*time.Second)
	o := &operated{t: t, link: l.connect}
	b, _ := o.gateway("b")
	for id, role := range map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode, "d2": pools.Decode} {
		l.join(role, id, devfleet.WorkerEvents{})
	}
	l.Eventually("a is healthy", func() bool { return l.Status("/health") == http.StatusOK && len(l.listed()) == 3 })
	b.Eventually("b is healthy", func() bool { return b.Status("/health") == http.StatusOK })
	const streams = 6
	b.Streams(streams, 8000, func() {
		assert.Equal(t, "yes", operate(l.Fleet, "/workers/d1/move", ""), "kept")
		l.Eventually("d1 is empty", func() bool { return l.Workers["d1"].Engine.Books().Running == 0 })
		l.Eventually("all go on on d2", func() bool { return l.Workers["d2"].Engine.Books().Running == streams })
	})
	assert.Contains(t, b.Logs.String(), "resumes=1", "no answer moved")
}
