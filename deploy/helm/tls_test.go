package helm

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// unasked is who asks the gateway in another way than it answers: with TLS or without, with a certificate or without.
func unasked(settings string, c *cluster, one corev1.Container) (found []string) {
	scheme := "http"
	if valueOf(settings, "tls-cert-file") != "" {
		scheme = "https"
	}
	for name, p := range map[string]*corev1.Probe{"startup": one.StartupProbe, "readiness": one.ReadinessProbe,
		"liveness": one.LivenessProbe} {
		if ask := p.HTTPGet; ask != nil && (strings.ToLower(cmp.Or(string(ask.Scheme), "http")) != scheme ||
			valueOf(settings, "tls-client-ca-file") != "") {
			found = append(found, fmt.Sprintf("the %s probe asks by %q without a certificate", name, ask.Scheme))
		}
	}
	for _, s := range of[*corev1.Service](c) {
		for _, p := range s.Spec.Ports {
			if (p.Name == "http" || p.Name == "metrics") && p.AppProtocol != nil && *p.AppProtocol != scheme {
				found = append(found, fmt.Sprintf("port %s of %s is said to be %s", p.Name, s.Name, *p.AppProtocol))
			}
		}
	}
	for _, m := range of[*serviceMonitor](c) {
		for _, e := range m.Spec.Endpoints {
			if cmp.Or(e.Scheme, "http") != scheme {
				found = append(found, m.Name+" scrapes by "+e.Scheme)
			}
			asks := valueOf(settings, "admin-tls-client-ca-file")+valueOf(settings, "tls-client-ca-file") != ""
			if asks && (e.TLSConfig == nil || e.TLSConfig.Cert == nil || e.TLSConfig.KeySecret == nil) {
				found = append(found, m.Name+" shows no certificate")
			}
		}
	}
	return found
}

// pair is a self-signed certificate of a name, of servers and clients, and its key, in PEM.
func pair(t *testing.T, name string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, private.Public(), private)
	require.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// secrets writes every file that settings name below /etc/tandem into a folder, and returns the settings with their
// paths there.
func secrets(t *testing.T, settings string) string {
	t.Helper()
	folder := t.TempDir()
	cert, key := pair(t, "demo-tandem.serving.svc") // is its own authority
	for _, name := range mountedFile.FindAllString(settings, -1) {
		content := cert
		switch {
		case strings.HasSuffix(name, ".key"):
			content = key
		case !strings.HasSuffix(name, ".crt"):
			content = []byte("a-secret-of-one-line\n")
		}
		path := filepath.Join(folder, strings.TrimPrefix(name, "/etc/tandem/"))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	return strings.ReplaceAll(settings, "/etc/tandem/", folder+"/")
}

// The gateway starts with the settings that the chart renders, and the files of their Secrets: they are all that TLS
// and the NATS inside demand. The readiness probe's own command, where it is one, is answered. The pods are not there:
// a worker by URL is in their place.
func TestGatewaysStartWithTheSecrets(t *testing.T) {
	for _, example := range []string{"replicas", "certificates"} {
		t.Run(example, func(t *testing.T) {
			c := objects(t, manifest(t, examples(t)[example]))
			config := filepath.Join(t.TempDir(), "gateway.yaml")
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			port := fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)
			settings := secrets(t, find[*corev1.ConfigMap](c, "demo-tandem-gateway").Data["gateway.yaml"])
			for old, now := range map[string]string{"http-port: 8000": "http-port: " + port, "0.0.0.0:9090": "127.0.0.1:0",
				"kubernetes-selector:": "worker-url: http://127.0.0.1:1,model=m #"} {
				settings = strings.Replace(settings, old, now, 1)
			}
			require.NoError(t, errors.Join(ln.Close(), os.WriteFile(config, []byte(settings+"\nembed-ports: 2379,4222,0\n"), 0o600)))
			path, err := gateway()
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, "serve", "--config="+config)
			cmd.Env, cmd.Dir = []string{"HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir()}, t.TempDir()
			var logs strings.Builder
			cmd.Stderr = &logs
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines, listens := bufio.NewScanner(out), false
			for !listens && lines.Scan() {
				listens = lines.Text() == "listening https://127.0.0.1:"+port
			}
			go func() { _, _ = io.Copy(io.Discard, out) }()
			probe := find[*appsv1.Deployment](c, "demo-tandem-gateway").Spec.Template.Spec.Containers[0].ReadinessProbe
			if (probe.Exec != nil) != (example == "certificates") {
				t.Errorf("the probe is %v", probe)
			}
			if listens && probe.Exec != nil {
				args := strings.Fields(strings.Replace(strings.Join(probe.Exec.Command[1:], " "), "/etc/tandem/gateway/gateway.yaml", config, 1))
				said, err := run(t, nil, args...)
				if err == nil || !strings.Contains(said, `503 "unhealthy"`) {
					t.Errorf("%v: %v: %s", args, err, said)
				}
			}
			cancel()
			_ = cmd.Wait() // it was killed
			if !listens {
				t.Errorf("it does not start with\n%s\n%s", settings, logs.String())
			}
		})
	}
}

// Among themselves gateways reach all that they need for sharing, whatever else is allowed: each other's NATS, and the
// port at which one that is silent is asked whether it lives. Engines do not reach a NATS that is for gateways alone.
func TestGatewaysReachEachOther(t *testing.T) {
	gateways := map[string]string{"app.kubernetes.io/part-of": "demo-tandem", "app.kubernetes.io/instance": "demo",
		"app.kubernetes.io/component": "gateway"}
	for name, tt := range map[string]struct {
		example, path string
		value         any
		want          []int
	}{
		"peers":   {"replicas", "networkPolicy.clients", []any{}, []int{8000, 6222}},
		"NATS":    {"production", "nats.enabled", true, []int{8000}},
		"etcd":    {"registry", "gateway.replicas", 3, []int{8000}},
		"nothing": {"production", "gateway.peers.existingSecret", "", nil},
	} {
		c := objects(t, manifest(t, set(sharing(examples(t)[tt.example], tt.path), tt.path, tt.value)))
		p := find[*networkingv1.NetworkPolicy](c, "demo-tandem-gateway")
		among := func(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) (found []int) {
			if len(peers) != 1 || peers[0].PodSelector == nil || !maps.Equal(peers[0].PodSelector.MatchLabels, gateways) {
				return nil
			}
			for _, port := range ports {
				found = append(found, port.Port.IntValue())
			}
			return found
		}
		var in, out []int
		for _, rule := range p.Spec.Ingress {
			in = append(in, among(rule.From, rule.Ports)...)
		}
		for _, rule := range p.Spec.Egress {
			out = append(out, among(rule.To, rule.Ports)...)
		}
		if !slices.Equal(in, tt.want) || !slices.Equal(out, tt.want) {
			t.Errorf("%s: gateways reach %v of each other, and may reach %v; want %v", name, in, out, tt.want)
		}
		if bus := find[*networkingv1.NetworkPolicy](c, "demo-tandem-nats"); bus != nil &&
			len(bus.Spec.Ingress[0].From) != map[string]int{"NATS": 1, "etcd": 2}[name] {
			t.Errorf("%s: NATS is reached by %v", name, bus.Spec.Ingress[0].From)
		}
	}
}
