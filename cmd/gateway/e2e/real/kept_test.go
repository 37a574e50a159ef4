package real

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/porttest"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

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
	port := porttest.Free(t)
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
		if err != nil {
			t.Fatal(err)
		}
	}
	o.has = func(kind, name string) bool {
		r, err := client.Get(t.Context(), key(kind, name))
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Kvs) > 0
	}
	return o
}

// overJetStream keeps in NATS; there is no etcd.
func overJetStream(t *testing.T) *operated {
	port := porttest.Free(t)
	o := &operated{t: t, server: newServer(t, fmt.Sprintf("jetstream %d %s", port, t.TempDir()))}
	address := fmt.Sprintf("nats://127.0.0.1:%d", port)
	o.link = func(string) stack.Links {
		return stack.Links{Group: fleet.Join(t, address)}
	}
	conn, err := nats.Connect(address, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	bucket := func() jetstream.KeyValue {
		kv, err := js.KeyValue(t.Context(), "TANDEM_STATE_tandem_workers")
		if err != nil {
			t.Fatal(err)
		}
		return kv
	}
	key := func(kind, name string) string { return kind + "." + base64.RawURLEncoding.EncodeToString([]byte(name)) }
	o.put = func(kind, name, value string) {
		if value == "" {
			err = bucket().Delete(t.Context(), key(kind, name))
		} else {
			_, err = bucket().PutString(t.Context(), key(kind, name), value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	o.has = func(kind, name string) bool { _, err := bucket().Get(t.Context(), key(kind, name)); return err == nil }
	return o
}

// gateway starts one, with workers that it is given by hand.
func (o *operated) gateway(name string, workers ...string) (f *fleet.Fleet, stop func()) {
	o.t.Helper()
	cfg := fleet.GatewayConfig()
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
	if err := json.Unmarshal(a.Body, &got); err != nil || a.Status != http.StatusOK {
		f.T.Fatalf("%s: status %d: %s", path, a.Status, a.Body)
	}
	return got.Kept
}

// TestChangesAreKept: what an operator changes at one gateway counts at the others, also with the server away
// meanwhile, and after all have been restarted. What strangers write does no harm.
func TestChangesAreKept(t *testing.T) {
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
			if got := operate(a, "/workers/w1/cordon", ""); got != "yes" {
				t.Errorf("kept: %s", got)
			}
			b.Eventually("b knows of a's cordon", cordoned(b, "w1"))
			if got := operate(b, "/busy_threshold", `{"model":"org/model","active_decode_blocks_threshold":0.5}`); got != "yes" {
				t.Errorf("kept: %s", got)
			}
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
				if n := strings.Count(f.Logs.String(), "ignored"); n != 5 {
					t.Errorf("%d entries are passed over, want 5", n)
				}
				if got := thresholdOf(f); got != "0.5 9000" {
					t.Errorf("a stranger's threshold made it %s", got)
				}
			}
			o.put("cordons", "absent", "")
			o.put("cordons", "w2", "")
			o.put("cordons", "w3", "")
			b.Eventually("a cordon that is removed by hand ends", cordoned(b, "w1"))

			o.server.kill()
			if got := operate(a, "/workers/w2/cordon", ""); got != "later" || !cordoned(a, "w1", "w2")() {
				t.Errorf("kept: %s; cordoned: %v", got, cordonsOf(a))
			}
			if got := operate(b, "/workers/w1/uncordon", ""); got != "later" || !cordoned(b)() {
				t.Errorf("kept: %s; cordoned: %v", got, cordonsOf(b))
			}
			c, stopC := o.gateway("c", workers...)
			if !strings.Contains(c.Logs.String(), "continuing without them") {
				t.Error("c does not say that it has not read them")
			}
			o.server.start()
			for _, f := range []*fleet.Fleet{a, b, c} {
				f.Eventually("all agree once the server is back", cordoned(f, "w2"))
			}
			for _, stop := range []func(){stopA, stopB, stopC} {
				stop()
			}

			d, _ := o.gateway("d", workers...)
			if got := cordonsOf(d); !slices.Equal(got, []string{"w2"}) {
				t.Errorf("after a restart %v are cordoned", got)
			}
			// The stranger's threshold is what the store has: the settings' are in force again.
			if got := thresholdOf(d); got != " 9000" {
				t.Errorf("after a restart the thresholds are %s", got)
			}
			if got := operate(d, "/busy_threshold", `{"model":"org/model","active_decode_blocks_threshold":null}`); got != "yes" ||
				o.has("thresholds", "org/model") {
				t.Errorf("kept: %s; the settings' own thresholds are kept: %v", got, o.has("thresholds", "org/model"))
			}
			if got := operate(d, "/workers/w2/uncordon", ""); got != "yes" || o.has("cordons", "w2") {
				t.Errorf("kept: %s; the key of no cordon is there: %v", got, o.has("cordons", "w2"))
			}
		})
	}
}

// TestChangesAreNotKept: with neither server the answer says so.
func TestChangesAreNotKept(t *testing.T) {
	o := &operated{t: t, link: func(string) stack.Links { return stack.Links{} }}
	f, _ := o.gateway("alone", "w1")
	if got := operate(f, "/workers/w1/cordon", ""); got != "no" {
		t.Errorf("kept: %s", got)
	}
	if got := operate(f, "/busy_threshold", `{"model":"org/model","active_decode_blocks_threshold":0.5}`); got != "no" {
		t.Errorf("kept: %s", got)
	}
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
		if got := operate(l.Fleet, "/workers/d1/move", ""); got != "yes" {
			t.Errorf("kept: %s", got)
		}
		l.Eventually("d1 is empty", func() bool { return l.Workers["d1"].Engine.Books().Running == 0 })
		l.Eventually("all go on on d2", func() bool { return l.Workers["d2"].Engine.Books().Running == streams })
	})
	if !strings.Contains(b.Logs.String(), "resumes=1") {
		t.Error("no answer moved")
	}
}
