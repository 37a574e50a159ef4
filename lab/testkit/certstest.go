package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Authority issues certificates.
type Authority struct {
	Cert *x509.Certificate
	PEM  []byte // of Cert, for a bundle
	key  *ecdsa.PrivateKey
	t    testing.TB
}

// Leaf describes a certificate.
type Leaf struct {
	Names  []string      // DNS names, IP addresses and URIs
	Common string        // the subject's common name
	From   time.Duration // from now on; by default an hour ago
	For    time.Duration // how long it is in force, by default a day; negative: until so long ago
}

// Pair is a certificate and its key, in PEM.
type Pair struct {
	Cert, Key []byte
	Serial    *big.Int
}

var serials atomic.Int64

// NewAuthority makes an authority.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-2 * time.Hour),
		NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.Cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Issue makes a certificate for both sides of a connection.
func (a *Authority) Issue(l Leaf) Pair {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	from, to := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if l.From != 0 {
		from = time.Now().Add(l.From)
	}
	if l.For != 0 {
		to = time.Now().Add(l.For)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serials.Add(1)), Subject: pkix.Name{CommonName: l.Common}, NotBefore: from, NotAfter: to,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range l.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if strings.Contains(name, "://") {
			u, err := url.Parse(name)
			if err != nil {
				a.t.Fatal(err)
			}
			template.URIs = append(template.URIs, u)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return Pair{
		Cert:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:    pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
		Serial: template.SerialNumber,
	}
}

// Pool is the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Cert)
	return pool
}

// Bundle writes the authority's certificate into dir and returns the path.
func (a *Authority) Bundle(dir string) string {
	return Write(a.t, filepath.Join(dir, a.Cert.Subject.CommonName+"-ca.pem"), a.PEM)
}

// Write puts the pair into dir as NAME.pem and NAME.key, each in one step, and returns the paths.
func (p Pair) Write(t testing.TB, dir, name string) (cert, key string) {
	t.Helper()
	return Write(t, filepath.Join(dir, name+".pem"), p.Cert), Write(t, filepath.Join(dir, name+".key"), p.Key)
}

// Write replaces a file in one step and returns its path.
func Write(t testing.TB, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}
