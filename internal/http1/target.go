package http1

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// target is where a worker's calls go: its base URL, taken apart once.
type target struct {
	base    string // as it was given
	path    string // the base URL's path, unescaped; mostly empty
	escaped string // the same as it is sent
	query   string // "?" and the base URL's query; mostly empty
	host    string // the Host header
	address string // host:port to dial; a name is looked up at each dial
	secure  bool   // https
	name    string // whom the certificate must name
}

// newTarget takes a base URL apart. Credentials in it are not sent.
func newTarget(base string) (*target, error) {
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("address %q is not an http URL", withoutUser(base))
	}
	t := &target{base: base, path: u.Path, secure: u.Scheme == "https", name: u.Hostname()}
	if strings.ContainsFunc(u.Host, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, fmt.Errorf("address %q: a host name outside ASCII must be given in its xn-- form", u.Redacted())
	}
	if strings.ContainsFunc(u.RawQuery, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return nil, fmt.Errorf("address %q: its query is not escaped", u.Redacted())
	}
	t.escaped = (&url.URL{Path: u.Path}).EscapedPath()
	if u.RawQuery != "" {
		t.query = "?" + u.RawQuery
	}
	port := u.Port()
	t.host = strings.TrimSuffix(u.Host, ":") // an empty port is none
	if zone := strings.IndexByte(t.host, '%'); zone >= 0 && t.host[0] == '[' {
		t.host = t.host[:zone] + t.host[strings.LastIndexByte(t.host, ']'):] // a zone means nothing to the other side
	}
	if t.secure {
		t.name, _, _ = strings.Cut(t.name, "%")
	}
	if port == "" {
		port = map[bool]string{false: "80", true: "443"}[t.secure]
	}
	t.address = net.JoinHostPort(u.Hostname(), port)
	return t, nil
}

// withoutUser removes credentials from what may be no URL at all.
func withoutUser(base string) string {
	if at := strings.LastIndexByte(base, '@'); at >= 0 {
		return "…" + base[at:]
	}
	return base
}

var errPath = errors.New("the path of a call must begin with /")

// appendPath appends the request line's path: path below the base URL's.
func (t *target) appendPath(dst []byte, path string) ([]byte, error) {
	if t.path == "" && !strings.HasPrefix(path, "/") {
		return dst, errPath
	}
	if plain(path) {
		dst = append(dst, t.escaped...)
		dst = append(dst, path...)
	} else {
		dst = append(dst, (&url.URL{Path: t.path + path}).EscapedPath()...)
	}
	return append(dst, t.query...), nil
}

// plain reports whether a path needs no escape.
func plain(path string) bool {
	for i := range len(path) {
		c := path[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '/' || c == '_' || c == '-' || c == '.' || c == '~') {
			return false
		}
	}
	return true
}
