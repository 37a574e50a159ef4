package zmq

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Endpoint is where a socket is: tcp://HOST:PORT. A host of *, 0.0.0.0 or :: is where one binds; any other is dialled.
type Endpoint struct {
	Host string
	Port int // 0 to 65535
}

// ParseEndpoint reads tcp://HOST:PORT. Port 0 stands for any free one and goes with binding only.
func ParseEndpoint(s string) (Endpoint, error) {
	rest, ok := strings.CutPrefix(s, "tcp://")
	if !ok {
		return Endpoint{}, fmt.Errorf("must be tcp://HOST:PORT, is %q", s)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil || host == "" {
		return Endpoint{}, fmt.Errorf("must be tcp://HOST:PORT, is %q", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	e := Endpoint{host, int(n)}
	if err != nil || n == 0 && !e.Binds() {
		return Endpoint{}, fmt.Errorf("must have a port from 1 to 65535, has %q", port)
	}
	return e, nil
}

// Binds reports whether a socket at e is bound rather than dialled.
func (e Endpoint) Binds() bool { return e.Host == "*" || e.Host == "0.0.0.0" || e.Host == "::" }

// Offset is the endpoint of a data-parallel rank: as many ports further. Port 0 stays.
func (e Endpoint) Offset(rank int) Endpoint {
	if e.Port != 0 {
		e.Port += rank
	}
	return e
}

// Address is e as package net takes it.
func (e Endpoint) Address() string {
	host := e.Host
	if host == "*" {
		host = ""
	}
	return net.JoinHostPort(host, strconv.Itoa(e.Port))
}

func (e Endpoint) String() string { return "tcp://" + net.JoinHostPort(e.Host, strconv.Itoa(e.Port)) }
