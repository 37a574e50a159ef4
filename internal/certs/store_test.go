package certs_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// kept is a source of the test's own files, and what is logged about it.
type kept struct {
	*certs.Source
	store *certs.Store
	dir   string
	log   bytes.Buffer
	reg   *prometheus.Registry
}

// files are a folder's server.pem and server.key, and ca.
func files(dir, ca string) certs.Files {
	return certs.Files{
		Use:  "clients",
		Cert: certs.File{Setting: "tls-cert-file", Path: filepath.Join(dir, "server.pem")},
		Key:  certs.File{Setting: "tls-key-file", Path: filepath.Join(dir, "server.key")},
		CA:   certs.File{Setting: "tls-client-ca-file", Path: ca},
	}
}

// keep opens dir's server.pem, server.key and, if ca is set, ca.pem.
func keep(t *testing.T, ca *testkit.Authority, first testkit.Pair) *kept {
	t.Helper()
	k := &kept{dir: t.TempDir(), reg: prometheus.NewRegistry()}
	k.store = certs.NewStore(0, slog.New(slog.NewTextHandler(&k.log, nil)))
	k.store.Export(k.reg)
	first.Write(t, k.dir, "server")
	bundle := ""
	if ca != nil {
		bundle = testkit.Write(t, filepath.Join(k.dir, "ca.pem"), ca.PEM)
	}
	var err error
	k.Source, err = k.store.Open(files(k.dir, bundle))
	require.NoError(t, err)
	return k
}

// serial is that of the certificate that a client is shown.
func (k *kept) serial(t *testing.T) *big.Int {
	t.Helper()
	state, _, err := handshake(t, k.Server(nil), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	return state.PeerCertificates[0].SerialNumber
}

// loaded is a pair as Go's TLS takes it.
func loaded(t *testing.T, p testkit.Pair) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	require.NoError(t, err)
	return c
}

// handshake joins both sides; atServer and atClient are each side's result.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, atServer, atClient error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer near.Close()
	far, err := ln.Accept()
	require.NoError(t, err)
	defer far.Close()
	ended := make(chan error, 1)
	go func() {
		s := tls.Server(far, server)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		far.Close()
		ended <- err
	}()
	c := tls.Client(near, client)
	_, atClient = c.Read(make([]byte, 1))
	near.Close()
	return c.ConnectionState(), <-ended, atClient
}

// metric is the value of a series of one use.
func (k *kept) metric(t *testing.T, name, result string) float64 {
	t.Helper()
	families, err := k.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (result == "" || m.GetLabel()[0].GetValue() == result) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// A new certificate is shown 11 s after its files came at the latest, by the default period. So it is when Kubernetes
// swaps the link of a folder.
func TestNewFilesAreSeenWithin11Seconds(t *testing.T) {
	ca := testkit.NewAuthority(t, "ca")
	for name, replace := range map[string]func(dir string, p testkit.Pair){
		"files": func(dir string, p testkit.Pair) { p.Write(t, dir, "server") },
		"link": func(dir string, p testkit.Pair) {
			data := t.TempDir()
			p.Write(t, data, "server")
			for _, f := range []string{"server.pem", "server.key"} {
				os.Remove(filepath.Join(dir, f))
				require.NoError(t, os.Symlink(filepath.Join(data, f), filepath.Join(dir, f)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := keep(t, nil, ca.Issue(testkit.Leaf{Names: []string{"gateway"}}))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- k.store.Run(ctx) }()
				for _, at := range []time.Duration{0, 3 * time.Second, 9999 * time.Millisecond} {
					time.Sleep(at)
					next := ca.Issue(testkit.Leaf{Names: []string{"gateway"}})
					replace(k.dir, next)
					time.Sleep(11 * time.Second)
					assert.Equal(t, next.Serial, k.serial(t), "11 s after the files came")
				}
				assert.EqualValues(t, 3, k.metric(t, "tls_reloads_total", "ok"))
				assert.InDelta(t, 23.5*3600, k.metric(t, "tls_certificate_expiry_seconds", ""), 1800)
				cancel()
				assert.NoError(t, <-done)
			})
		})
	}
}

// Files that cannot be used leave what is in force, are an error that names the setting, and are logged once.
func TestBrokenFilesKeepTheOld(t *testing.T) {
	ca, other := testkit.NewAuthority(t, "ca"), testkit.NewAuthority(t, "other")
	first, next := ca.Issue(testkit.Leaf{}), ca.Issue(testkit.Leaf{})
	old, early := ca.Issue(testkit.Leaf{For: -time.Minute}), ca.Issue(testkit.Leaf{From: time.Hour})
	for _, c := range []struct {
		name          string
		cert, key, ca []byte
		want          []string
	}{
		{"expired", old.Cert, old.Key, nil, []string{"tls-cert-file", "server.pem", "expired on"}},
		{"not yet valid", early.Cert, early.Key, nil, []string{"tls-cert-file", "valid from"}},
		{"key of another", next.Cert, first.Key, nil, []string{"tls-key-file", "private key does not match"}},
		{"only the certificate so far", next.Cert, nil, nil, []string{"tls-key-file", "private key does not match"}},
		{"half a certificate", next.Cert[:len(next.Cert)/2], next.Key, nil, []string{"tls-cert-file", "no whole certificate"}},
		{"half a key", next.Cert, next.Key[:len(next.Key)/2], nil, []string{"tls-key-file"}},
		{"empty", []byte{}, []byte{}, nil, []string{"tls-cert-file", "no whole certificate"}},
		{"swapped", next.Key, next.Cert, nil, []string{"tls-cert-file", "no whole certificate"}},
		{"half a bundle", nil, nil, other.PEM[:len(other.PEM)/2], []string{"tls-client-ca-file", "no whole certificate"}},
		{"expired bundle", nil, nil, ca.Issue(testkit.Leaf{For: -time.Minute}).Cert, []string{"tls-client-ca-file", "expired on"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := keep(t, ca, first)
			for file, content := range map[string][]byte{"server.pem": c.cert, "server.key": c.key, "ca.pem": c.ca} {
				if content != nil {
					testkit.Write(t, filepath.Join(k.dir, file), content)
				}
			}
			for range 3 {
				err := k.store.Reload()
				_, named := errors.AsType[*setting.Error](err)
				require.True(t, named, "the error names no setting: %v", err)
				for _, want := range c.want {
					assert.ErrorContains(t, err, want)
				}
			}
			assert.Equal(t, 1, strings.Count(k.log.String(), "\n"), "lines in the log")
			assert.Contains(t, k.log.String(), c.want[0])
			assert.Equal(t, first.Serial, k.Pair().Leaf.SerialNumber, "the old one's serial")
			assert.EqualValues(t, 1, k.metric(t, "tls_reloads_total", "failed"))
			next.Write(t, k.dir, "server")
			testkit.Write(t, filepath.Join(k.dir, "ca.pem"), other.PEM)
			assert.NoError(t, k.store.Reload(), "once the files are whole")
			assert.Equal(t, next.Serial, k.Pair().Leaf.SerialNumber, "the new one's serial")
		})
	}
}

// A missing file is an error too, and so is half a pair of settings.
func TestOpenRefuses(t *testing.T) {
	p := testkit.NewAuthority(t, "ca").Issue(testkit.Leaf{})
	cert, key := p.Write(t, t.TempDir(), "p")
	store := certs.NewStore(0, slog.New(slog.DiscardHandler))
	for _, c := range []struct{ cert, key, ca, want string }{
		{cert, "", "", "tls-key-file: it is missing"},
		{"", key, "", "tls-cert-file: it is missing"},
		{cert, key + ".not", "", "tls-key-file: open "},
		{cert, key, cert + ".not", "tls-client-ca-file: open "},
		{cert, cert, "", "tls-key-file: "},
	} {
		_, err := store.Open(certs.Files{
			Cert: certs.File{Setting: "tls-cert-file", Path: c.cert}, Key: certs.File{Setting: "tls-key-file", Path: c.key},
			CA: certs.File{Setting: "tls-client-ca-file", Path: c.ca},
		})
		assert.True(t, err != nil && strings.HasPrefix(err.Error(), c.want), "%+v: %v", c, err)
	}
}

// A client without a certificate, one of another authority and one of an unlisted name are refused; a new bundle counts
// for sessions that could have been resumed.
func TestClientsCertificates(t *testing.T) {
	ca, other := testkit.NewAuthority(t, "ca"), testkit.NewAuthority(t, "other")
	k := keep(t, ca, ca.Issue(testkit.Leaf{Names: []string{"gateway"}}))
	client := func(p *testkit.Pair) *tls.Config {
		c := &tls.Config{RootCAs: ca.Pool(), ServerName: "gateway", ClientSessionCache: tls.NewLRUClientSessionCache(8)}
		if p != nil {
			c.Certificates = []tls.Certificate{loaded(t, *p)}
		}
		return c
	}
	ours, theirs := ca.Issue(testkit.Leaf{Names: []string{"spiffe://td/ns/a/sa/app"}}), other.Issue(testkit.Leaf{})
	names := []string{"spiffe://td/ns/a/*"}
	good := client(&ours)
	for _, c := range []struct {
		name   string
		client *tls.Config
		names  []string
		want   string
	}{
		{"listed", good, names, ""},
		{"any", good, nil, ""},
		{"unlisted", good, []string{"spiffe://td/ns/b/*", "app"}, "spiffe://td/ns/a/sa/app"},
		{"none", client(nil), nil, "didn't provide a certificate"},
		{"another authority's", client(&theirs), nil, "certificate"}, // which the client may know not to show
	} {
		_, atServer, atClient := handshake(t, k.Server(c.names, "http/1.1"), c.client)
		assert.Equal(t, c.want == "", atClient == nil, "%s: the client has %v", c.name, atClient)
		assert.True(t, c.want == "" && atServer == nil || atServer != nil && c.want != "" && strings.Contains(atServer.Error(), c.want),
			"%s: the server has %v; want %q", c.name, atServer, c.want)
	}
	testkit.Write(t, filepath.Join(k.dir, "ca.pem"), other.PEM)
	require.NoError(t, k.store.Reload())
	_, atServer, _ := handshake(t, k.Server(nil, "http/1.1"), good)
	assert.Error(t, atServer, "a client whose authority has left the bundle")
}

func TestNamed(t *testing.T) {
	ca := testkit.NewAuthority(t, "ca")
	for want, pairs := range map[bool][][2]string{ // a name, and the one that a certificate bears
		true: {
			{"a.example", "a.example"}, {"a.example", "A.Example"}, {"*.example", "a.example"},
			{"spiffe://td/ns/a/sa/x", "spiffe://td/ns/a/sa/x"}, {"spiffe://td/ns/a/*", "spiffe://td/ns/a/sa/x"},
		},
		false: {
			{"*.example", "a.b.example"}, {"*.example", "example"}, {"a.example", "xa.example"}, {"*.td", "spiffe://x.td"},
			{"spiffe://td/ns/a/*", "spiffe://td/ns/a"}, {"spiffe://td/ns/a/*", "spiffe://td/ns/ab/sa/x"}, {"spiffe://td/ns/a*", "spiffe://td/ns/ab"},
		},
	} {
		for _, p := range pairs {
			leaf := loaded(t, ca.Issue(testkit.Leaf{Names: []string{p[1]}})).Leaf
			assert.Equal(t, want, certs.Named(leaf, []string{"other", p[0]}) == nil, "%s of %s", p[0], p[1])
		}
	}
	assert.Error(t, certs.Named(&x509.Certificate{}, []string{"a"}), "a certificate without names")
	for name, ok := range map[string]bool{"a": true, "*.a": true, "spiffe://td/*": true, "*": false, "": false, "a b": false,
		"a.*": false, "spiffe://": false, "://x": false} {
		assert.Equal(t, ok, certs.CheckName(name) == nil, name)
	}
}

// What a client cannot believe or is refused for names the setting.
func TestExplain(t *testing.T) {
	ca, other := testkit.NewAuthority(t, "ca"), testkit.NewAuthority(t, "other")
	store := certs.NewStore(0, slog.New(slog.DiscardHandler))
	source := func(authority *testkit.Authority, p *testkit.Pair) *certs.Source {
		dir := t.TempDir()
		f := certs.Files{CA: certs.File{Setting: "worker-ca-file"}, Cert: certs.File{Setting: "client-cert-file"},
			Key: certs.File{Setting: "client-key-file"}}
		if authority != nil {
			f.CA.Path = authority.Bundle(dir)
		}
		if p != nil {
			f.Cert.Path, f.Key.Path = p.Write(t, dir, "own")
		}
		s, err := store.Open(f)
		require.NoError(t, err)
		return s
	}
	k := keep(t, ca, ca.Issue(testkit.Leaf{Names: []string{"worker"}}))
	own, foreign := ca.Issue(testkit.Leaf{}), other.Issue(testkit.Leaf{})
	good, old := k.Server(nil), loaded(t, ca.Issue(testkit.Leaf{Names: []string{"worker"}, For: -time.Minute}))
	for _, c := range []struct {
		name   string
		server *tls.Config
		s      *certs.Source
		want   string
	}{
		{"good", good, source(ca, &own), ""},
		{"no bundle", good, source(nil, &own), "name its authority by worker-ca-file"},
		{"wrong bundle", good, source(other, &own), "it is not in worker-ca-file, "},
		{"no certificate", good, source(ca, nil), "client-cert-file and client-key-file are not given"},
		{"refused certificate", good, source(ca, &foreign), "the other side refuses the certificate of client-cert-file, "},
		{"expired", &tls.Config{Certificates: []tls.Certificate{old}}, source(ca, &own),
			"it is the other side's certificate, of worker, in force from "},
	} {
		config := c.s.Client().Clone()
		config.ServerName = "worker"
		_, _, err := handshake(t, c.server, config)
		if err = c.s.Explain(err); c.want == "" {
			assert.NoError(t, err, c.name)
		} else {
			assert.ErrorContains(t, err, c.want, c.name)
		}
	}
	_, _, err := handshake(t, keep(t, nil, own).Server(nil), k.ServerConfig())
	assert.Error(t, err, "another server passes for this process's own")
	_, _, err = handshake(t, keep(t, nil, own).Server(nil), keep(t, nil, own).ServerConfig())
	assert.NoError(t, err)
}

// Two connections with the same files share a source: the metrics would have each series twice.
func TestSameFilesAreOneSource(t *testing.T) {
	k := keep(t, nil, testkit.NewAuthority(t, "ca").Issue(testkit.Leaf{}))
	again, err := k.store.Open(files(k.dir, ""))
	require.NoError(t, err)
	assert.Same(t, k.Source, again)
	_, err = k.reg.Gather()
	assert.NoError(t, err)
}
