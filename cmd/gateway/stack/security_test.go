package stack

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 5*time.Millisecond, what)
}

// link connects until the test's end.
func link(t *testing.T, d *Discovery, log *slog.Logger) Links {
	t.Helper()
	links, unlink, err := Connect(d, nil, log, nats.Name("test"))
	require.NoError(t, err)
	t.Cleanup(unlink)
	return links
}

// connected reports whether links.Bus reaches its server.
func connected(l Links) bool { return l.Bus.(interface{ Connected() bool }).Connected() }

// register writes a key into etcd, as a worker does.
func register(t *testing.T, name string, l Links) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := l.Etcd.Put(ctx, "/tandem/x", name)
	assert.NoError(t, err, name)
}

// startNATS runs a NATS of the test's own.
func startNATS(t *testing.T, o natsd.Options) *natsd.Server {
	t.Helper()
	o.Host, o.Port, o.NoLog, o.NoSigs = "127.0.0.1", natsd.RANDOM_PORT, true, true
	s, err := natsd.NewServer(&o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(10*time.Second), "NATS is ready")
	return s
}

// The embedded servers listen beyond the loopback with TLS and a password only. The gateway and a worker with the
// password work with them, also after a restart in the same folder; others are refused, and the reason is logged.
func TestEmbeddedForOtherMachines(t *testing.T) {
	dir := t.TempDir()
	ca, other := testkit.NewAuthority(t, "ca"), testkit.NewAuthority(t, "other")
	pair := ca.Issue(testkit.Leaf{Names: []string{"127.0.0.1"}})
	cert, key := pair.Write(t, dir, "gateway")
	file := func(name, text string) string { return testkit.Write(t, filepath.Join(dir, name), []byte(text)) }
	for _, password := range []string{"first secret", "second"} {
		password = strings.ReplaceAll(password, " ", "-")
		inside, err := Embed(EmbedConfig{
			Listen: "0.0.0.0", Dir: filepath.Join(dir, "data"), JetStream: true, PasswordFile: file("password", password+"\n"),
			TLS: &edge.TLS{CertFile: cert, KeyFile: key},
		})
		require.NoError(t, err)
		assert.DirExists(t, filepath.Join(dir, "data", "nats", "jetstream"), "where streams outlive the gateway")
		stop := sync.OnceFunc(inside.Close)
		t.Cleanup(stop)
		quiet := slog.New(slog.DiscardHandler)
		var own Discovery
		inside.Join(&own)
		gateway := link(t, &own, quiet)
		worker := &Discovery{
			// without a scheme: with certificates that is TLS
			EtcdEndpoints: []string{strings.Replace(inside.EtcdURL(), "https://", "tandem@", 1)},
			EtcdAccess:    EtcdAccess{EtcdPasswordFile: file("worker", password), EtcdCA: ca.Bundle(dir)},
			NATSURL:       strings.Replace(inside.NATSURL(), "tls://", "tls://tandem:"+password+"@", 1),
			NATSAccess:    NATSAccess{NATSCA: ca.Bundle(dir)},
		}
		for name, l := range map[string]Links{"gateway": gateway, "worker": link(t, worker, quiet)} {
			until(t, name+" reaches NATS", func() bool { return connected(l) })
			register(t, name, l)
		}
		for _, c := range []struct {
			name   string
			change func(d *Discovery)
			log    []string
		}{
			{"wrong password", func(d *Discovery) {
				d.EtcdPasswordFile, d.NATSURL = file("wrong", "wrong"), strings.Replace(d.NATSURL, password, "wrong", 1)
			}, []string{"Authorization Violation"}},
			{"other authority", func(d *Discovery) { d.EtcdCA, d.NATSCA = other.Bundle(dir), other.Bundle(dir) },
				[]string{"etcd-ca-file", "nats-ca-file", "unknown authority"}},
			{"no authority", func(d *Discovery) {
				d.EtcdEndpoints, d.EtcdCA, d.NATSCA = []string{"https://" + d.EtcdEndpoints[0]}, "", ""
			}, []string{"name its authority by etcd-ca-file", "name its authority by nats-ca-file"}},
		} {
			var log locked
			d := *worker
			c.change(&d)
			l := link(t, &d, slog.New(slog.NewTextHandler(&log, nil)))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			asked := make(chan error, 1)
			go func() { _, err := l.Etcd.Get(ctx, "/tandem/x"); asked <- err }()
			for _, want := range c.log {
				until(t, c.name+": the log has "+want, func() bool { return strings.Contains(log.String(), want) })
			}
			if c.name != "wrong password" {
				cancel()
			}
			assert.True(t, <-asked != nil && !connected(l), "%s: it is let in", c.name)
			cancel()
			assert.NotContains(t, log.String(), password, "the log has the password")
		}
		for name, pair := range map[string]testkit.Pair{
			"half a key": {Cert: pair.Cert, Key: pair.Key[:len(pair.Key)/2]},
			"expired":    ca.Issue(testkit.Leaf{Names: []string{"127.0.0.1"}, From: -2 * time.Hour, For: -time.Hour}),
			"renewed":    ca.Issue(testkit.Leaf{Names: []string{"127.0.0.1"}}),
		} {
			pair.Write(t, dir, "gateway")
			if err := inside.certs.Reload(); (err == nil) != (name == "renewed") {
				t.Errorf("%s: %v", name, err)
			}
			late := link(t, worker, quiet)
			until(t, name+": a new worker reaches NATS", func() bool { return connected(late) })
			register(t, name, late)
		}
		pair.Write(t, dir, "gateway")
		stop()
	}
}

// Without TLS or a password the embedded servers stay on the loopback, and the error names what is missing.
func TestEmbeddedRefusesToBeOpen(t *testing.T) {
	whole := edge.TLS{CertFile: "c", KeyFile: "k"}
	for _, c := range []struct {
		cfg  EmbedConfig
		want string
	}{
		{EmbedConfig{Listen: "0.0.0.0"}, "embed-listen: other machines reach 0.0.0.0: give tls-cert-file, tls-key-file, embed-password-file too"},
		{EmbedConfig{Listen: "10.0.0.1", PasswordFile: "p"}, "embed-listen: other machines reach 10.0.0.1: give tls-cert-file, tls-key-file too"},
		{EmbedConfig{Listen: "::", TLS: &whole}, "embed-listen: other machines reach ::: give embed-password-file too"},
		{EmbedConfig{PasswordFile: "p"}, "embed-password-file: a password must not pass without TLS"},
		{EmbedConfig{Listen: "127.0.0.1"}, ""},
		{EmbedConfig{Listen: "0.0.0.0", PasswordFile: "p", TLS: &whole}, ""},
	} {
		err := c.cfg.Validate()
		assert.True(t, (c.want != "" || err == nil) && (c.want == "" || err != nil && strings.HasPrefix(err.Error(), c.want)),
			"%+v: %v", c.cfg, err)
		if c.want != "" {
			if _, err := Embed(c.cfg); err == nil {
				t.Errorf("%+v is started", c.cfg)
			}
		}
	}
}

// A NATS user is known by a credentials file, as nsc makes it.
func TestNATSCredentials(t *testing.T) {
	operator, _ := nkeys.CreateOperator()
	account, _ := nkeys.CreateAccount()
	accountKey, _ := account.PublicKey()
	operatorKey, _ := operator.PublicKey()
	oc := jwt.NewOperatorClaims(operatorKey)
	ac := jwt.NewAccountClaims(accountKey)
	signed, err := ac.Encode(operator)
	require.NoError(t, err)
	resolver := &natsd.MemAccResolver{}
	require.NoError(t, resolver.Store(accountKey, signed))
	s := startNATS(t, natsd.Options{TrustedOperators: []*jwt.OperatorClaims{oc}, AccountResolver: resolver})
	creds := func(signer nkeys.KeyPair) string {
		user, _ := nkeys.CreateUser()
		key, _ := user.PublicKey()
		token, err := jwt.NewUserClaims(key).Encode(signer)
		require.NoError(t, err)
		seed, _ := user.Seed()
		text, err := jwt.FormatUserConfig(token, seed)
		require.NoError(t, err)
		return testkit.Write(t, filepath.Join(t.TempDir(), "user.creds"), text)
	}
	var log locked
	good := creds(account)
	path := testkit.Write(t, filepath.Join(t.TempDir(), "user.creds"), nil)
	stranger, _ := nkeys.CreateAccount()
	if links := link(t, &Discovery{NATSURL: s.ClientURL(), NATSAccess: NATSAccess{NATSCreds: good}},
		slog.New(slog.NewTextHandler(&log, nil))); !connected(links) {
		t.Errorf("not let in: %s", log.String())
	}
	wrong := link(t, &Discovery{NATSURL: s.ClientURL(), NATSAccess: NATSAccess{NATSCreds: creds(stranger)}},
		slog.New(slog.NewTextHandler(&log, nil)))
	until(t, "the reason is logged", func() bool { return strings.Contains(log.String(), "Authorization Violation") })
	assert.False(t, connected(wrong), "another account's user is let in")
	for _, bad := range []string{path, path + ".not"} {
		wrongSetting(t, &Discovery{NATSURL: s.ClientURL(), NATSAccess: NATSAccess{NATSCreds: bad}}, "nats-creds")
	}
}

// wrongSetting is refused with the setting's name.
func wrongSetting(t *testing.T, d *Discovery, name string) {
	t.Helper()
	_, unlink, err := Connect(d, nil, slog.New(slog.DiscardHandler), nats.Name("test"))
	unlink()
	wrong, ok := errors.AsType[*setting.Error](err)
	require.True(t, ok, "%s: %v", name, err)
	assert.Equal(t, name, wrong.Name)
}

// Settings that cannot work end the start by their name.
func TestAccessSettings(t *testing.T) {
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, "ca")
	password := testkit.Write(t, filepath.Join(dir, "password"), []byte("secret\n"))
	old := ca.Issue(testkit.Leaf{For: -time.Hour})
	oldCert, oldKey := old.Write(t, dir, "old")
	for _, c := range []struct {
		name string
		d    Discovery
	}{
		{"etcd-endpoints", Discovery{EtcdEndpoints: []string{"http://u@h:1"}}},
		{"etcd-endpoints", Discovery{EtcdEndpoints: []string{"http://h:1"}, EtcdAccess: EtcdAccess{EtcdPasswordFile: password}}},
		{"etcd-password-file", Discovery{EtcdEndpoints: []string{"http://u@h:1"}, EtcdAccess: EtcdAccess{EtcdPasswordFile: dir}}},
		{"etcd-endpoints", Discovery{EtcdEndpoints: []string{"http://a:b@h:1"}, EtcdAccess: EtcdAccess{EtcdPasswordFile: password}}},
		{"etcd-endpoints", Discovery{EtcdEndpoints: []string{"http://h:1"}, EtcdAccess: EtcdAccess{EtcdCA: ca.Bundle(dir)}}},
		{"etcd-ca-file", Discovery{EtcdEndpoints: []string{"https://h:1"}, EtcdAccess: EtcdAccess{EtcdCA: password}}},
		{"client-cert-file", Discovery{EtcdEndpoints: []string{"https://h:1"}, NATSAccess: NATSAccess{Identity: Identity{oldCert, oldKey}}}},
		{"client-key-file", Discovery{EtcdEndpoints: []string{"https://h:1"}, NATSAccess: NATSAccess{Identity: Identity{Cert: oldCert}}}},
		{"client-cert-file", Discovery{NATSURL: "nats://h:1", NATSAccess: NATSAccess{Identity: Identity{oldCert, oldKey}}}},
		{"nats-ca-file", Discovery{NATSURL: "nats://h:1", NATSAccess: NATSAccess{NATSCA: filepath.Join(dir, "none")}}},
	} {
		wrongSetting(t, &c.d, c.name)
	}
}
