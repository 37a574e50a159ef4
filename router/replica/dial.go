package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// patience bounds the wait for an answer of a gateway's address.
const memberPatience = time.Second

// secure prefixes the address of a gateway that serves TLS.
const secure = "https://"

// dial probes HOST:PORT, or https://HOST:PORT for TLS. Only an answer shows that the process lives: the kernel accepts
// connections of a stopped process too. The probe uses the clients' protocol, so no failed handshake is counted.
func dial(ctx context.Context, addr string) Verdict {
	addr, speaksTLS := strings.CutPrefix(addr, secure)
	ctx, cancel := context.WithTimeout(ctx, memberPatience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return unanswered(err)
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return Unreachable
		}
	}
	ask := plainly
	if speaksTLS {
		ask = overTLS
	}
	if !ask(conn) {
		return Unreachable
	}
	return Answered
}

// unanswered classifies a connection error. Only a refused connection shows that the process ended. An unreachable host
// or network may also be a partition with the gateway alive behind it.
func unanswered(err error) Verdict {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return Refused
	}
	return Unreachable
}

// plainly reports whether a plain request gets any answer.
func plainly(conn net.Conn) bool {
	if _, err := conn.Write([]byte("GET /live HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")); err != nil {
		return false
	}
	n, _ := conn.Read(make([]byte, 1))
	return n > 0
}

// overTLS reports whether the first message of a handshake gets any answer. The handshake stops there: no secret is
// sent, no certificate verified.
func overTLS(conn net.Conn) bool {
	hello := &firstByte{Conn: conn}
	_ = tls.Client(hello, &tls.Config{InsecureSkipVerify: true}).Handshake() //nolint:gosec // it ends before there is anything to verify
	return hello.answered
}

// firstByte is a connection that fails reads once the other side's first byte arrives.
type firstByte struct {
	net.Conn
	answered bool
}

// Read returns [io.EOF] at the first byte, or the error of the read, and never a byte.
func (c *firstByte) Read([]byte) (int, error) {
	n, err := c.Conn.Read(make([]byte, 1))
	if c.answered = n > 0; c.answered {
		err = io.EOF
	}
	return 0, err
}

func port(addr string) string {
	_, p, err := net.SplitHostPort(strings.TrimPrefix(addr, secure))
	if err != nil {
		return addr
	}
	return p
}
