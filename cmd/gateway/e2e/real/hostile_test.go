package real

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// securityFiles are what operators start from.
const securityFiles = "../../../../deploy/compose/security"

// hostile is a NATS and an etcd on a shared network, with each process's credentials.
type hostile struct {
	t    *testing.T
	ca   *testkit.Authority
	dir  string
	nats *natsd.Server
	etcd *discovery.EmbeddedEtcd
	root *clientv3.Client
}

// newHostile starts NATS with the configuration that is shipped, and etcd with TLS and users.
func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{t: t, ca: testkit.NewAuthority(t, "fleet"), dir: t.TempDir()}
	cert, key := h.ca.Issue(testkit.Leaf{Names: []string{"127.0.0.1", "localhost"}}).Write(t, h.dir, "servers")
	bundle := h.ca.Bundle(h.dir)
	shipped, err := os.ReadFile(filepath.Join(securityFiles, "nats.conf"))
	require.NoError(t, err)
	variables := fmt.Sprintf("TANDEM_NATS_CERT: %q\nTANDEM_NATS_KEY: %q\nTANDEM_NATS_CA: %q\n", cert, key, bundle)
	options, err := natsd.ProcessConfigFile(testkit.Write(t, filepath.Join(h.dir, "nats.conf"), append([]byte(variables), shipped...)))
	require.NoError(t, err)
	options.Host, options.Port, options.NoLog, options.NoSigs = "127.0.0.1", natsd.RANDOM_PORT, true, true
	options.Cluster, options.Routes = natsd.ClusterOpts{}, nil // it is alone
	h.nats, err = natsd.NewServer(options)
	require.NoError(t, err)
	h.nats.Start()
	t.Cleanup(func() { h.nats.Shutdown(); h.nats.WaitForShutdown() })
	require.True(t, h.nats.ReadyForConnections(10*time.Second), "NATS is not ready")
	h.etcd, err = discovery.StartEtcd(discovery.EtcdConfig{CertFile: cert, KeyFile: key})
	require.NoError(t, err)
	t.Cleanup(h.etcd.Close)
	access := stack.EtcdAccess{EtcdCA: bundle}
	h.root = fleet.Links(t, &stack.Discovery{EtcdEndpoints: []string{h.etcd.URL()}, EtcdAccess: access}, "root").Etcd
	return h
}

// users runs the shipped script.
func (h *hostile) users(args ...string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	password := "TANDEM_PASSWORD=pw-of-" + args[min(1, len(args)-1)]
	require.NoError(h.t, testkit.EtcdUsers(ctx, h.root, filepath.Join(securityFiles, "etcd-users.sh"), []string{password}, args...))
}

// discovery is how a process reaches both: by its certificate, and by its name and password.
func (h *hostile) discovery(name string) *stack.Discovery {
	d := &stack.Discovery{EtcdEndpoints: []string{strings.Replace(h.etcd.URL(), "//", "//"+name+"@", 1)}, NATSURL: h.nats.ClientURL()}
	bundle := h.ca.Bundle(h.dir)
	cert, key := h.ca.Issue(testkit.Leaf{Names: []string{name + ".tandem.internal"}}).Write(h.t, h.dir, name)
	d.NATSAccess = stack.NATSAccess{NATSCA: bundle, Identity: stack.Identity{Cert: cert, Key: key}}
	password := testkit.Write(h.t, filepath.Join(h.dir, name+".password"), []byte("pw-of-"+name+"\n"))
	d.EtcdAccess = stack.EtcdAccess{EtcdPasswordFile: password, EtcdCA: bundle}
	return d
}

// links connects a process.
func (h *hostile) links(d *stack.Discovery, log *slog.Logger) stack.Links {
	h.t.Helper()
	links, unlink, err := stack.Connect(d, nil, log, nats.Name("test"))
	require.NoError(h.t, err)
	h.t.Cleanup(unlink)
	return links
}

// A gateway and workers serve with the permissions of the shipped files alone, and the workers' KV events arrive.
// A worker that writes another's record, or publishes another's events, is refused, and so is a gateway that writes.
func TestFleetAmongOthers(t *testing.T) {
	t.Parallel() // it waits for etcd, which hashes passwords
	h := newHostile(t)
	_, err := h.root.UserAdd(t.Context(), "root", "root")
	require.NoError(t, err)
	h.users("gateway", "gateway-1")
	h.users("worker", "prefill-1", stack.SimModel, "prefill", "prefill-1")
	h.users("worker", "decode-1", stack.SimModel, "decode", "decode-1")
	h.users("enable")

	cfg := fleet.GatewayConfig()
	cfg.LeaseTTL = time.Minute // which nothing here is to lose, however slow passwords are hashed
	log := slog.New(slog.DiscardHandler)
	f := fleet.Bare(t, cfg, h.links(h.discovery("gateway-1"), log), slog.LevelInfo)
	f.RunGateway()
	for id, role := range map[string]pools.Role{"prefill-1": pools.Prefill, "decode-1": pools.Decode} {
		w, err := devfleet.NewWorker(devfleet.WorkerConfig{
			Engine: engine.Config{Role: string(role), ID: id, Speedup: 20}, Host: "127.0.0.1", ModelInput: "text",
			Drain: time.Second, LeaseTTL: time.Minute,
		}, h.links(h.discovery(id), log), log)
		require.NoError(t, err)
		f.Run(id, w)
	}
	f.Eventually("both workers serve", func() bool { // decode alone is enough for /health
		for _, id := range []string{"prefill-1", "decode-1"} {
			if _, known := f.Gateway.Roster.Lookup(id); !known {
				return false
			}
		}
		return f.Status("/health") == http.StatusOK
	})
	f.Exact(fleet.Long, 6)
	f.Eventually("the worker's KV events are followed", func() bool {
		var shown struct {
			KVEvents map[string][]struct{ Blocks int } `json:"kv_events"`
		}
		f.Get("/workers", &shown)
		sources := shown.KVEvents[stack.SimModel+"/prefill"]
		return len(sources) == 1 && sources[0].Blocks > 0
	})

	// What one may not do.
	decode := wire.Source{Pool: stack.SimModel + "/decode", Worker: "decode-1"}
	prefill := wire.Source{Pool: stack.SimModel + "/prefill", Worker: "prefill-1"}
	for _, c := range []struct {
		who, does, subject string
		refused            bool
	}{
		{"prefill-1", "publish", prefill.EventsSubject(), false},
		{"prefill-1", "publish", prefill.BeatSubject(), false},
		{"prefill-1", "publish", decode.EventsSubject(), true},
		{"prefill-1", "publish", decode.BeatSubject(), true},
		{"prefill-1", "subscribe", decode.SnapshotSubject(), true},
		{"prefill-1", "subscribe", wire.AllEvents, true},
		{"prefill-1", "subscribe", "_INBOX.>", true},
		{"gateway-1", "publish", prefill.EventsSubject(), true},
		{"gateway-1", "publish", prefill.SnapshotSubject(), false},
		{"gateway-1", "subscribe", wire.AllEvents, false},
	} {
		assert.Equal(t, c.refused, h.try(c.who, c.does, c.subject) != nil, "%s is refused to %s %s", c.who, c.does, c.subject)
	}
	own, other := discovery.DefaultPrefix+stack.SimModel+"/prefill/prefill-1", discovery.DefaultPrefix+stack.SimModel+"/decode/decode-1"
	for _, c := range []struct{ who, key string }{
		{"prefill-1", other}, {"prefill-1", discovery.DefaultPrefix + "new/prefill/prefill-1"}, {"gateway-1", own}, {"gateway-1", other},
	} {
		client := h.links(h.discovery(c.who), log).Etcd
		_, err := client.Put(t.Context(), c.key, "{}")
		assert.ErrorIs(t, err, rpctypes.ErrPermissionDenied, "%s writes %s", c.who, c.key)
	}
	if _, err := nats.Connect(h.nats.ClientURL(), nats.RootCAs(h.ca.Bundle(h.dir))); err == nil {
		t.Error("NATS lets in a client without a certificate")
	}
	stranger := h.discovery("stranger")
	if nc, err := nats.Connect(h.nats.ClientURL(), nats.RootCAs(stranger.NATSCA),
		nats.ClientCert(stranger.Cert, stranger.Key)); err == nil {
		nc.Close()
		t.Error("NATS lets in a worker that has no entry")
	}
}

// try does one thing at NATS as someone and returns NATS's error.
func (h *hostile) try(who, does, subject string) error {
	h.t.Helper()
	d := h.discovery(who)
	complaints := make(chan error, 8)
	nc, err := nats.Connect(d.NATSURL, nats.RootCAs(d.NATSCA), nats.ClientCert(d.Cert, d.Key),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { complaints <- err }))
	require.NoError(h.t, err)
	defer nc.Close()
	if does == "publish" {
		err = nc.Publish(subject, nil)
	} else {
		_, err = nc.SubscribeSync(subject)
	}
	require.NoError(h.t, err)
	if err := nc.Flush(); err != nil { // the complaint comes before its answer, and is handled on its own goroutine
		h.t.Fatal(err)
	}
	if nc.LastError() == nil {
		return nil
	}
	return <-complaints
}

// Workers behind https:// that require the gateway's certificate serve with it. Where their authority is not named, the
// log names the setting.
func TestWorkersWithCertificates(t *testing.T) {
	t.Parallel()
	ca, dir := testkit.NewAuthority(t, "workers"), t.TempDir()
	pair := ca.Issue(testkit.Leaf{Names: []string{"127.0.0.1"}})
	shown, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	cfg := fleet.GatewayConfig()
	workers := &fleet.Fleet{T: t, Workers: map[string]*fleet.Worker{}}
	for id, role := range map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode} {
		first := true
		w, err := devfleet.NewWorker(devfleet.WorkerConfig{
			Engine: engine.Config{Role: string(role), ID: id, Speedup: 20}, Host: "127.0.0.1", ModelInput: "text", Drain: time.Second,
			Listen: func(network, address string) (net.Listener, error) {
				ln, err := net.Listen(network, address)
				if !first || err != nil { // the KV side channel is the engines' own
					return ln, err
				}
				first = false
				return tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{shown}, ClientCAs: ca.Pool(),
					ClientAuth: tls.RequireAndVerifyClientCert}), nil
			},
		}, stack.Links{}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		workers.Run(id, w)
		t.Cleanup(workers.Workers[id].Kill)
		cfg.Workers.Static = append(cfg.Workers.Static,
			fleet.Endpoint(t, role, strings.Replace(w.Record().Address, "http://", "https://", 1)+",id="+id))
	}
	stranger := fleet.NewStatic(t, cfg)
	stranger.Eventually("the log names the setting", func() bool {
		return strings.Contains(stranger.Logs.String(), "name its authority by worker-ca-file")
	})
	cfg.Workers.TLS.CA = ca.Bundle(dir)
	cfg.Identity.Cert, cfg.Identity.Key = ca.Issue(testkit.Leaf{}).Write(t, dir, "gateway")
	f := fleet.NewStatic(t, cfg)
	f.Healthy()
	f.Exact(fleet.Long, 6)
}

// sharing is a gateway's routers, and its membership in a group.
type sharing struct {
	*replica.Member
	pool    *pools.Pool
	routers *router.Set
}

// join makes a gateway of a host a member.
func (h *hostile) join(host string, log *slog.Logger) *sharing {
	h.t.Helper()
	group, err := stack.JoinGroup(h.discovery(host), certs.NewStore(0, log), log)
	require.NoError(h.t, err)
	s := &sharing{pool: &pools.Pool{Model: "m", Role: pools.Both,
		Members: []pools.Member{{Worker: &pools.Worker{ID: "w", BlockSize: 16, TotalKVBlocks: 1000}}}}}
	base := router.DefaultConfig()
	base.OnBooking = func(made bool) { s.Booked(made) }
	s.routers, err = router.NewSet(base.ByRole(), log)
	require.NoError(h.t, err)
	cfg := setting.Default[replica.MemberConfig]()
	cfg.Complete("/tandem/workers")
	cfg.Name = host + ":8000"
	s.Member = replica.NewMember(cfg, group, log)
	s.Share(replica.Rooms{
		Routers: s.routers, Pool: func(string, pools.Role) *pools.Pool { return s.pool }, Wake: func(string) {},
		Warn:       func(string, pools.Role) {},
		Heads:      func() map[string][]queue.Head { return nil },
		ApplyHeads: func(string, string, []queue.Head) bool { return false },
		Addr:       func() string { return "127.0.0.1:1" },
	})
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error)
	go func() { left <- s.Run(ctx) }()
	h.t.Cleanup(func() {
		leave()
		assert.NoError(h.t, <-left)
		group.Close()
	})
	return s
}

// book books the worker, and returns the end of that.
func (s *sharing) book(t *testing.T) (release func()) {
	t.Helper()
	l, err := s.routers.For("m", pools.Both).Reserve(s.pool, router.Request{ID: "1", ISL: 160}, time.Now())
	require.NoError(t, err)
	return func() { l.Release(time.Now()) }
}

// requests is how many are on the worker, of all members in this one's view.
func (s *sharing) requests() int { return s.routers.For("m", pools.Both).Loads(s.pool)[0].Requests }

// whole reports whether this member has all bookings of n others.
func (s *sharing) whole(n int) bool {
	known := 0
	for _, p := range s.Peers() {
		if p.State == "whole" {
			known++
		}
	}
	return known == n
}

// Two gateways with what the shipped nats.conf lets a gateway do are a group: each has the other's bookings, from
// before it joined and from then on, and its end. A certificate lets a gateway publish under its own name alone, and a
// worker neither publish nor receive anything of that.
func TestGroupAmongOthers(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	f := &fleet.Fleet{T: t, Logs: &fleet.LogBuffer{}}
	log := slog.New(slog.NewTextHandler(f.Logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	a := h.join("gateway-1", log)
	ends := a.book(t) // before there is another one: it has to ask for this
	b := h.join("gateway-2", log)
	f.Eventually("each knows what the other has booked", func() bool { return a.whole(1) && b.whole(1) && b.requests() == 1 })
	also := b.book(t)
	f.Eventually("a receives a booking", func() bool { return a.requests() == 2 })
	ends()
	f.Eventually("b receives its end", func() bool { return b.requests() == 1 })

	const own, first, second = "tandem.replica.tandem_workers.", "gateway-1:8000", "gateway-2:8000"
	for _, c := range []struct{ does, subject, who string }{ // whom alone NATS lets
		{"publish", own + first + ".say", "gateway-1"},
		{"publish", own + second + ".say", "gateway-2"},
		{"publish", own + first + ".ask." + second, "gateway-1"},
		{"publish", own + "gateway-3:8000.ask." + second, ""},
		{"publish", own + "say", ""},
		{"publish", "tandem.replica.other." + first + ".say", ""},
		{"subscribe", own + "*.ask." + first, "gateway-1"},
		{"subscribe", own + "*.views." + second, "gateway-2"},
		{"subscribe", own + "*.say", "gateway-1 gateway-2"},
		{"subscribe", own + "*.ask.*", ""},
		{"subscribe", own + ">", ""},
	} {
		for _, who := range []string{"gateway-1", "gateway-2", "prefill-1", "decode-1"} {
			assert.Equal(t, strings.Contains(c.who, who), h.try(who, c.does, c.subject) == nil, "%s may %s %s", who, c.does, c.subject)
		}
	}
	// Neither as the answer to a request that was never sent.
	assert.Error(t, h.try("prefill-1", "publish", nats.NewInbox()), "a worker answers what it was not asked")
	stranger := &fleet.Fleet{T: t, Logs: &fleet.LogBuffer{}}
	h.join("prefill-1", slog.New(slog.NewTextHandler(stranger.Logs, nil)))
	stranger.Eventually("its log has what NATS refuses",
		func() bool { return strings.Contains(stranger.Logs.String(), "NATS refuses a subject") })
	also()
	f.Eventually("nothing is booked", func() bool { return a.requests() == 0 && b.requests() == 0 })
	if n := a.Counts().Malformed + b.Counts().Malformed - 4; n != 0 ||
		strings.Contains(f.Logs.String(), "refuses a subject") { // two empty ones at each
		t.Errorf("%d more messages than sent are malformed, or some are refused\n%s", n, f.Logs)
	}
}
