package member

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/router/replica"
)

// patience is how long a gateway's address has to answer.
const patience = time.Second

// secure stands before the address of a gateway whose clients use TLS.
const secure = "https://"

// dial asks whether the process behind an address lives: HOST:PORT, behind https:// where it speaks TLS. Anything that it says
// shows that. That a connection is made does not: a stopped process's system takes it. The process is spoken to as its
// clients do, and counts no failed handshake.
func dial(ctx context.Context, addr string) replica.Verdict {
	addr, speaksTLS := strings.CutPrefix(addr, secure)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return unanswered(err)
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return replica.Unreachable
		}
	}
	ask := plainly
	if speaksTLS {
		ask = overTLS
	}
	if !ask(conn) {
		return replica.Unreachable
	}
	return replica.Answered
}

// unanswered is what the error of a connection shows. Only a refused one shows that the process has ended: its system is there, and
// nothing listens. That a host or network cannot be reached is also what a gateway sees that is cut off from another one, which
// lives, and whose requests run on.
func unanswered(err error) replica.Verdict {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return replica.Refused
	}
	return replica.Unreachable
}

// plainly reports whether anything is answered to a request.
func plainly(conn net.Conn) bool {
	if _, err := conn.Write([]byte("GET /live HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")); err != nil {
		return false
	}
	n, _ := conn.Read(make([]byte, 1))
	return n > 0
}

// overTLS reports whether anything is answered to the first message of a handshake. The handshake goes no further: nothing secret is
// sent, no certificate is verified, and one that the other side asks for is not owed yet. A connection that ends there is one of a client
// that just went.
func overTLS(conn net.Conn) bool {
	hello := &firstByte{Conn: conn}
	_ = tls.Client(hello, &tls.Config{InsecureSkipVerify: true}).Handshake() //nolint:gosec // it ends before there is anything to verify
	return hello.answered
}

// firstByte is a connection that ends, for who reads from it, where the other side's first byte comes.
type firstByte struct {
	net.Conn
	answered bool
}

// Read returns no byte: [io.EOF] in the place of the first, or what kept it from coming.
func (c *firstByte) Read([]byte) (int, error) {
	n, err := c.Conn.Read(make([]byte, 1))
	if c.answered = n > 0; c.answered {
		err = io.EOF
	}
	return 0, err
}

// port is the port of an address.
func port(addr string) string {
	_, p, err := net.SplitHostPort(strings.TrimPrefix(addr, secure))
	if err != nil {
		return addr
	}
	return p
}
