package stack

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// Gateways that show the same certificate and have the same password make one NATS of those inside them. One with another password
// or another certificate, though of the same authority, is kept out.
func TestRoutesOverTLS(t *testing.T) {
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, "ca")
	issue := func(name string) *edge.TLS {
		cert, key := ca.Issue(testkit.Leaf{Names: []string{"127.0.0.1"}}).Write(t, dir, name)
		return &edge.TLS{CertFile: cert, KeyFile: key}
	}
	password := func(name, text string) string {
		return testkit.Write(t, filepath.Join(dir, name), []byte(text))
	}
	shared, other := issue("shared"), issue("other")
	right, wrong := password("right", "right"), password("wrong", "wrong")
	var first string
	start := func(own *edge.TLS, password string) *Group {
		cfg := EmbedConfig{Listen: "0.0.0.0", PasswordFile: password, TLS: own, Peers: []string{"127.0.0.1:1"}, OnlyNATS: true}
		if first != "" {
			cfg.Peers = []string{first}
		}
		inside, err := Embed(cfg)
		require.NoError(t, err)
		t.Cleanup(inside.Close)
		if first == "" {
			first = inside.nats.RoutesAddr()
		}
		var d Discovery
		inside.Join(&d)
		log := slog.New(slog.DiscardHandler)
		g, err := JoinGroup(&d, certs.NewStore(0, log), log)
		require.NoError(t, err)
		t.Cleanup(g.Close)
		until(t, "a gateway reaches the NATS inside it", g.Connected)
		return g
	}
	heard := make(chan string, 64)
	hear := func(name string, g *Group) {
		stop, err := g.Subscribe("words", func(m *nats.Msg) { heard <- name + " " + string(m.Data) }, func(int) {})
		require.NoError(t, err)
		t.Cleanup(stop)
	}
	a, b := start(shared, right), start(shared, right)
	for name, g := range map[string]*Group{"a": a, "b": b} {
		if ip := g.IP(); outward(nil) != "" && (ip == "" || net.ParseIP(ip).IsLoopback()) {
			t.Errorf("the others are to reach %s at %q, which each takes for itself", name, ip)
		}
	}
	stranger, thief := start(shared, wrong), start(other, right)
	hear("b", b)
	hear("stranger", stranger)
	hear("thief", thief)
	until(t, "a is heard by b", func() bool {
		assert.NoError(t, a.Publish(&nats.Msg{Subject: "words", Data: []byte("of a")}))
		select {
		case what := <-heard:
			assert.Equal(t, "b of a", what, "heard")
			return true
		default:
			return false
		}
	})
	for name, g := range map[string]*Group{"stranger": stranger, "thief": thief} {
		assert.NoError(t, g.Publish(&nats.Msg{Subject: "words", Data: []byte("of the " + name)}))
		assert.NoError(t, g.conn.Flush())
	}
	last := "b the last"
	require.NoError(t, a.Publish(&nats.Msg{Subject: "words", Data: []byte("the last")}))
	for what := ""; what != last; {
		if what = <-heard; what != last && what != "b of a" {
			t.Errorf("heard: %s", what)
		}
	}
}

// A gateway is dialled at the address of its machine, also where the NATS that it is connected to is on the same machine: the loopback
// would be the dialling one itself, which answers for the dead.
func TestAddressForOtherMachines(t *testing.T) {
	everywhere, one := &net.TCPAddr{IP: net.IPv4zero, Port: 8000}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 8000}
	host, err := os.Hostname()
	require.NoError(t, err)
	for _, c := range []struct {
		addr net.Addr
		seen string
		want string
	}{{one, "10.0.0.8", "10.0.0.7:8000"}, {everywhere, "10.0.0.8", "10.0.0.8:8000"}, {everywhere, "fd00::7", "[fd00::7]:8000"},
		{everywhere, "", host + ":8000"}} {
		assert.Equal(t, c.want, reached(c.addr, c.seen), "%v as %s is reached at", c.addr, c.seen)
	}
	own := outward(nil)
	if own == "" {
		t.Log("this machine has no way to others")
		return
	}
	for _, peers := range [][]string{{"gateway-peers:6222"}, {"127.0.0.1:6222", "[::1]:6222"}, {net.JoinHostPort(own, "6222")},
		{"no address"}} {
		assert.Equal(t, own, outward(peers), "towards %v it", peers)
	}
}
