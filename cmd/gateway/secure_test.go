package main

import (
	"crypto/tls"
	"fmt"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// serve with TLS is asked by `gateway health` and `gateway workers` with the settings of its own environment, takes a new
// certificate at SIGHUP, and keeps it when the next one cannot be used.
func TestServeWithTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, "ca")
	issue := func() testkit.Pair { return ca.Issue(testkit.Leaf{Names: []string{"gateway.example"}}) }
	first := issue()
	cert, key := first.Write(t, dir, "gateway")
	bundle := ca.Bundle(dir)
	s := startServe(t, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-client-ca-file", bundle,
		"--worker-url", "http://127.0.0.1:1,model=m")
	require.True(t, strings.HasPrefix(s.url, "https://"), s.url)
	port := s.url[strings.LastIndexByte(s.url, ':')+1:]
	own := []string{"TANDEM_HTTP_PORT=" + port, "TANDEM_TLS_CERT_FILE=" + cert, "TANDEM_TLS_KEY_FILE=" + key}
	lines(t, own, "workers", []line{{"list", exitOK, "m"}})
	status, _, stderr := inside(t, own, "health")
	assert.True(t, status == exitOK || strings.Contains(stderr, "503"), stderr) // whether its worker is found dead yet
	lines(t, own[:1], "health", []line{{"", exitFailed, "400"}})
	serial := func() *big.Int {
		pair, err := tls.X509KeyPair(first.Cert, first.Key)
		require.NoError(t, err)
		c, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: ca.Pool(), ServerName: "gateway.example",
			Certificates: []tls.Certificate{pair}})
		require.NoError(t, err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber
	}
	next := issue()
	next.Write(t, dir, "gateway")
	s.send(syscall.SIGHUP)
	s.eventually("the new certificate", func() bool { return serial().Cmp(next.Serial) == 0 })
	testkit.Write(t, filepath.Join(dir, "gateway.key"), next.Key[:len(next.Key)/2])
	s.send(syscall.SIGHUP)
	s.logged("tls-key-file")
	if got := serial(); got.Cmp(next.Serial) != 0 {
		t.Errorf("with half a key serial %v is shown, want %v", got, next.Serial)
	}
	s.stop()
	http.DefaultClient.CloseIdleConnections()
}

// Certificates that cannot be used end the start, with the setting's name and the cause.
func TestServeRefusesBadCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, "ca")
	cert, key := ca.Issue(testkit.Leaf{}).Write(t, dir, "good")
	old := ca.Issue(testkit.Leaf{For: -time.Hour})
	oldCert, oldKey := old.Write(t, dir, "old")
	lines(t, nil, "serve --http-port 0 --worker-url http://127.0.0.1:1,model=m", []line{
		{"--tls-cert-file " + cert, exitUsage, "tls-cert-file (flag): it needs tls-key-file"},
		{"--tls-cert-file " + oldCert + " --tls-key-file " + oldKey, exitUsage, "tls-cert-file (flag): " + oldCert +
			": the certificate expired on "},
		{"--tls-cert-file " + cert + " --tls-key-file " + oldKey, exitUsage, "tls-key-file (flag): "},
		{"--worker-ca-file " + key, exitUsage, "worker-ca-file (flag): " + key + ": there is no whole certificate in it"},
		{"--client-cert-file " + cert, exitUsage, "client-key-file: it is missing"},
		{"--embed-listen 0.0.0.0", exitUsage, "embed-listen (flag): other machines reach 0.0.0.0: give tls-cert-file, tls-key-file, embed-password-file too"},
		{"--etcd-endpoints https://127.0.0.1:1 --etcd-ca-file " + key + " --no-router-kv-events", exitUsage, "etcd-ca-file (flag): "},
		{"--etcd-endpoints https://127.0.0.1:1 --nats-url nats://127.0.0.1:1 --nats-creds " + key, exitUsage, "nats-creds (flag): "},
	})
}

// Gateways of a group that take TLS alone, and clients' certificates alone, see without a NATS that the others live, and that one has died.
// Being asked for that counts as no failed handshake.
func TestReplicasOverTLS(t *testing.T) {
	t.Parallel()
	bus, err := natsbus.StartServer(natsbus.ServerConfig{})
	require.NoError(t, err)
	t.Cleanup(bus.Close)
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, "ca")
	pair := ca.Issue(testkit.Leaf{Names: []string{"gateway.example"}})
	cert, key := pair.Write(t, dir, "gateway")
	own, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), ServerName: "gateway.example",
		Certificates: []tls.Certificate{own}}}}
	defer client.CloseIdleConnections()
	metrics := func(s *proc) string {
		_, text := getBy(client, s.url+"/metrics")
		return text
	}
	var gateways []*proc
	for range 3 {
		gateways = append(gateways, startServe(t, "--replica-group", "test", "--nats-url", bus.URL(), "--worker-url",
			"http://127.0.0.1:1,model=m",
			"--tls-cert-file", cert, "--tls-key-file", key, "--tls-client-ca-file", ca.Bundle(dir)))
	}
	are := func(s *proc, state string, n int) {
		t.Helper()
		s.eventually(fmt.Sprintf("%d others are %s", n, state), func() bool {
			return strings.Contains(metrics(s), fmt.Sprintf("tandem_replica_peers{state=%q} %d\n", state, n))
		})
	}
	for _, s := range gateways {
		are(s, "whole", 2)
	}
	bus.Close()
	for _, s := range gateways {
		are(s, "silent", 2) // and alive: each has been dialled by both others
	}
	gateways[2].kill()
	for _, s := range gateways[:2] {
		are(s, "silent", 1)
		s.logged("gateway died")
		for _, reason := range []string{"plain_http", "client_certificate", "handshake"} {
			assert.Contains(t, metrics(s), fmt.Sprintf("tandem_frontend_connection_problems_total{reason=%q} 0\n", reason))
		}
	}
}
