package certs

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

// Named returns an error if a certificate has none of the names; no names allow any. A name with a scheme is compared
// with
// the certificate's URIs, another with its DNS names. A URI ending in /* matches by prefix, *.DOMAIN one more label.
func Named(c *x509.Certificate, names []string) error {
	if len(names) == 0 {
		return nil
	}
	var borne []string
	for _, u := range c.URIs {
		borne = append(borne, u.String())
	}
	borne = append(borne, c.DNSNames...)
	for _, b := range borne {
		if slices.ContainsFunc(names, func(name string) bool { return takes(name, b) }) {
			return nil
		}
	}
	if len(borne) == 0 {
		return fmt.Errorf("the client's certificate bears neither a URI nor a DNS name, and only listed names are served")
	}
	return fmt.Errorf("the client's certificate bears %.200q, which is not listed", strings.Join(borne, ", "))
}

// takes reports whether name equals or covers a name of a certificate.
func takes(name, borne string) bool {
	if strings.Contains(name, "://") {
		folder, all := strings.CutSuffix(name, "*")
		return borne == name || all && strings.HasSuffix(folder, "/") && strings.HasPrefix(borne, folder) && len(borne) > len(folder)
	}
	if strings.Contains(borne, "://") {
		return false
	}
	if domain, all := strings.CutPrefix(name, "*."); all {
		_, rest, ok := strings.Cut(borne, ".")
		return ok && strings.EqualFold(rest, domain)
	}
	return strings.EqualFold(name, borne)
}

// CheckName returns why [Named] cannot use a name.
func CheckName(name string) error {
	rest := name
	if scheme, after, ok := strings.Cut(name, "://"); ok {
		if scheme == "" || after == "" {
			return fmt.Errorf("%.80q is not a URI, as spiffe://DOMAIN/PATH", name)
		}
		rest = strings.TrimSuffix(after, "/*")
	} else {
		rest = strings.TrimPrefix(rest, "*.")
	}
	if rest == "" || strings.ContainsAny(rest, "* \t") {
		return fmt.Errorf("%.80q is neither a DNS name, or *.DOMAIN, nor a URI, or URI/*", name)
	}
	return nil
}
