package auth

import (
	"net"
	"net/netip"
	"strings"
)

// Loopback reports whether only this machine reaches a listener on host, an address or a name.
func Loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// OwnHost reports whether a request's Host header names this machine: localhost, a loopback address, or one of the
// names ("*" is any). A page whose own public name resolves to loopback sends that name; names below .localhost and
// .internal, as host.docker.internal, are never a stranger's. A browser always sends a Host.
func OwnHost(header string, names []string) bool {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if host == "" || Loopback(host) || below(host, ".localhost") || below(host, ".internal") {
		return true
	}
	for _, name := range names {
		if name == "*" || strings.EqualFold(name, host) {
			return true
		}
	}
	return false
}

// below reports whether host is a name in the domain.
func below(host, domain string) bool {
	return len(host) > len(domain) && strings.EqualFold(host[len(host)-len(domain):], domain)
}

// JSON reports whether a body's Content-Type is application/json, with any parameters, or is absent. A page of another
// origin can send no JSON type without a preflight, so a request with an Origin must have it.
func JSON(contentType string, hasOrigin bool) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.TrimSpace(media)
	return media == "" && !hasOrigin || strings.EqualFold(media, "application/json")
}
