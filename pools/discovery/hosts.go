package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/setting"
)

// Hosts is a set of hosts: names, addresses and patterns of both. The zero value is empty.
type Hosts struct {
	any      bool
	loopback bool
	names    []string // in lower case
	domains  []string // ".example.com" for *.example.com
	networks []netip.Prefix
}

// LoopbackHosts are localhost and the addresses that no other machine has.
func LoopbackHosts() *Hosts { return &Hosts{loopback: true} }

// ParseHosts reads hosts, each as one of NAME, *.DOMAIN (any name below it), ADDRESS, ADDRESS/BITS (a network) or * (any
// host). Ports and schemes are refused.
func ParseHosts(list []string) (*Hosts, error) {
	h := &Hosts{}
	for _, text := range list {
		if text == "*" {
			h.any = true
			continue
		}
		host := normal(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
		if network, err := netip.ParsePrefix(host); err == nil {
			h.networks = append(h.networks, network.Masked())
			continue
		}
		if at, err := netip.ParseAddr(host); err == nil && at.Zone() == "" {
			h.networks = append(h.networks, netip.PrefixFrom(at.Unmap(), at.Unmap().BitLen()))
			continue
		}
		domain, wild := strings.CutPrefix(host, "*.")
		switch {
		case domain == "" || strings.ContainsFunc(domain, func(r rune) bool {
			return r <= ' ' || r > '~' ||
				strings.ContainsRune("*/:@[]?,", r)
		}):
			return nil, fmt.Errorf("%s is no host: write a name, *.DOMAIN, an address, a network as 10.0.0.0/8, or * for any", setting.Quote(text))
		case wild:
			h.domains = append(h.domains, "."+domain)
		default:
			h.names = append(h.names, domain)
		}
	}
	return h, nil
}

// Has reports whether host is one of h. Names are compared as they are written: none is looked up, because a server that answers for
// a name could answer with any address.
func (h *Hosts) Has(host string) bool {
	if h.any {
		return true
	}
	if at, err := netip.ParseAddr(host); err == nil {
		at = at.Unmap()
		return h.loopback && at.IsLoopback() || slices.ContainsFunc(h.networks, func(n netip.Prefix) bool { return n.Contains(at) })
	}
	host = normal(host)
	return h.loopback && host == "localhost" || slices.Contains(h.names, host) ||
		slices.ContainsFunc(h.domains, func(domain string) bool { return len(host) > len(domain) && strings.HasSuffix(host, domain) })
}

// normal is a name as it is compared.
func normal(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
