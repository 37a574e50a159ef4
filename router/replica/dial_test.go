package replica

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// listening is a listener until the test's end.
func listening(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

func TestDial(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	closed, stopped := listening(t), listening(t) // a stopped process's system takes connections, and it does not answer
	_ = closed.Close()
	for addr, want := range map[string]Verdict{
		answers(t):                       Answered,
		secure + answers(t):              Answered, // it serves no TLS any more, and it answers
		closed.Addr().String():           Refused,
		stopped.Addr().String():          Unreachable,
		secure + closed.Addr().String():  Refused,
		secure + stopped.Addr().String(): Unreachable,
		"nowhere":                        Unreachable,
	} {
		all.Go(func() { assert.Equal(t, want, dial(t.Context(), addr), addr) })
	}
	all.Wait()
}

// TestDialOverTLS: a gateway that takes TLS alone answers, whatever its certificate is and whether or not it asks for one, and what it
// sees is a client that goes in the middle of the handshake: neither a request without TLS nor a certificate refused.
func TestDialOverTLS(t *testing.T) {
	ca := testkit.NewAuthority(t, "unknown")
	pair := ca.Issue(testkit.Leaf{Names: []string{"elsewhere"}})
	shown, err := tls.X509KeyPair(pair.Cert, pair.Key)
	require.NoError(t, err)
	for name, config := range map[string]*tls.Config{
		"TLS 1.3": {Certificates: []tls.Certificate{shown}},
		"TLS 1.2": {Certificates: []tls.Certificate{shown}, MaxVersion: tls.VersionTLS12},
		"mutual":  {Certificates: []tls.Certificate{shown}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert},
		"mutual, 1.2": {Certificates: []tls.Certificate{shown}, ClientCAs: ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
			MaxVersion: tls.VersionTLS12},
	} {
		ln := listening(t)
		came := make(chan error, 1)
		go func() {
			conn, err := ln.Accept()
			if err != nil {
				came <- err
				return
			}
			defer conn.Close()
			came <- tls.Server(conn, config).Handshake()
		}()
		assert.Equal(t, Answered, dial(t.Context(), secure+ln.Addr().String()), "%s", name)
		err := <-came
		remote, ofNetwork := errors.AsType[*net.OpError](err)
		assert.True(t, (!ofNetwork || remote.Op != "remote error") && (ofNetwork || errors.Is(err, io.EOF)),
			"%s: the handshake ends by %v", name, err)
	}
}

// TestUnreachableIsNotDead: only a refused connection shows that a process has ended. A gateway whose network is cut is unreachable too, and
// what it has booked goes on.
func TestUnreachableIsNotDead(t *testing.T) {
	for errno, want := range map[syscall.Errno]Verdict{
		syscall.ECONNREFUSED: Refused, syscall.EHOSTUNREACH: Unreachable, syscall.ENETUNREACH: Unreachable,
		syscall.EHOSTDOWN: Unreachable, syscall.ETIMEDOUT: Unreachable, syscall.ECONNRESET: Unreachable,
	} {
		assert.Equal(t, want, unanswered(&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}),
			errno)
	}
}
