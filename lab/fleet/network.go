package fleet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// hop is the latency of a network's connection: the minimum, and yet an instant of its own. What is reported without
// the network, such as KV events over a MemoryBus, is known everywhere before a byte sent at the same moment arrives.
const hop = time.Nanosecond

// network carries connections within a testing/synctest bubble. A write is accepted at once, whole, while less than the
// window is unread, and can be read a hop later.
//
// Many things happen at one instant in virtual time, and their goroutines run in any order. A listener with a port of
// its own choice therefore orders answers of one instant by their requests, a nanosecond apart.
type network struct {
	mu        sync.Mutex
	listeners map[string]*wireListener
	port      int // that was given out last
	client    *http.Client
}

// networks are those of the bubbles, by the test of each.
var networks sync.Map

// Virtual runs a test in a bubble: the fleets that it makes are connected by a network in memory, and time passes when
// everybody waits. No goroutine and no timer may be left at its end.
func Virtual(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		networks.Store(t, n)
		t.Cleanup(func() {
			networks.Delete(t)
			n.client.CloseIdleConnections()
			<-time.After(time.Minute) // fasthttp's pool cleaner sleeps for ten seconds before it ends
		})
		f(t)
	})
}

// VirtualRun runs a part of a test in a bubble of its own.
func VirtualRun(t *testing.T, name string, f func(t *testing.T)) bool {
	t.Helper()
	return t.Run(name, func(t *testing.T) { Virtual(t, f) })
}

// Within runs a part of a test in the test's own bubble, in which t.Run is forbidden.
func Within(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	if before := t.Failed(); !before {
		defer func() {
			if t.Failed() {
				t.Logf("failed in: %s", name)
			}
		}()
	}
	f(t)
}

// NetworkOf is the network of the test's bubble, nil outside of one.
func NetworkOf(t testing.TB) *network {
	n, _ := networks.Load(t)
	bubble, _ := n.(*network)
	return bubble
}

func NewNetwork() *network {
	n := &network{listeners: map[string]*wireListener{}, port: 20_000}
	n.client = &http.Client{Transport: &http.Transport{DialContext: n.Dial, MaxIdleConnsPerHost: 64, DisableCompression: true}}
	return n
}

// Listen is net.Listen.
func (n *network) Listen(_, address string) (net.Listener, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &wireListener{network: n, ordered: port != 0, queue: make(chan net.Conn, 4096), closed: make(chan struct{})}
	if port == 0 {
		n.port++
		port = n.port
	}
	l.address = &net.TCPAddr{IP: net.ParseIP(host), Port: port}
	if n.listeners[l.address.String()] != nil {
		return nil, fmt.Errorf("%s: %w", address, syscall.EADDRINUSE)
	}
	n.listeners[l.address.String()] = l
	return l, nil
}

// listenContext is net.ListenConfig.Listen.
func (n *network) listenContext(_ context.Context, network, address string) (net.Listener, error) {
	return n.Listen(network, address)
}

// Dial is net.Dialer.DialContext.
func (n *network) Dial(_ context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, refused(address)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuses {
		return nil, refused(address)
	}
	there, back := newWay(), newWay()
	there.hole, back.hole = l.silent, l.silent
	server := &wireConn{in: there, out: back, local: l.address, remote: &net.TCPAddr{IP: l.address.IP, Port: 1}}
	client := &wireConn{in: back, out: there, local: server.remote, remote: l.address}
	if l.ordered {
		client.answers, client.turns = back, l
	}
	l.ends = append(l.ends, server)
	select {
	case l.queue <- server:
		return client, nil
	case <-l.closed:
		return nil, refused(address)
	}
}

// Client is an HTTP client of the test's network.
func Client(t testing.TB) *http.Client {
	if n := NetworkOf(t); n != nil {
		return n.client
	}
	return http.DefaultClient
}

// Dial connects to an address of the test's network.
func Dial(t testing.TB, address string) (net.Conn, error) {
	if n := NetworkOf(t); n != nil {
		return n.Dial(t.Context(), "tcp", address)
	}
	return net.Dial("tcp", address)
}

// Listen opens a port of the test's network, a free one for 0.
func Listen(t testing.TB, port int) net.Listener {
	t.Helper()
	open := net.Listen
	if n := NetworkOf(t); n != nil {
		open = n.Listen
	}
	ln, err := open("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	return ln
}

// FreePort is a port of the test's network without a listener.
func FreePort(t testing.TB) int {
	n := NetworkOf(t)
	if n == nil {
		return testkit.FreePort(t)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.port++
	return n.port
}

// ServeHTTP runs a server in the test's network until the test ends.
func ServeHTTP(t testing.TB, serve http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := &httptest.Server{Listener: Listen(t, 0), Config: &http.Server{Handler: serve}}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

func refused(address string) error {
	at, _ := net.ResolveTCPAddr("tcp", address)
	return &net.OpError{Op: "dial", Net: "tcp", Addr: at, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// wireListener accepts a network's connections.
type wireListener struct {
	network *network
	address *net.TCPAddr
	ordered bool
	queue   chan net.Conn
	once    sync.Once
	closed  chan struct{}

	mu      sync.Mutex
	turn    time.Duration
	ends    []*wireConn // of its connections
	refuses bool
	silent  bool
}

// CutOff has an address refuse its connections and reset those that it has, or carry nothing where silent.
func (n *network) CutOff(address string, silent bool) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuses, l.silent = !silent, silent
	for _, c := range l.ends {
		if silent {
			c.in.lose()
			c.out.lose()
		} else {
			_ = c.Close()
		}
	}
}

// Reopen has an address take connections again that CutOff has had refuse them.
func (n *network) Reopen(address string) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuses = false
}

func (l *wireListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *wireListener) Close() error {
	l.once.Do(func() {
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.listeners, l.address.String())
		close(l.closed)
	})
	return nil
}

func (l *wireListener) Addr() net.Addr { return l.address }

// next returns the delay of a request that arrives now.
func (l *wireListener) next() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn += time.Nanosecond
	return l.turn
}

// wireConn is one end of a connection.
type wireConn struct {
	in, out       *way
	local, remote net.Addr

	// Of the client's end of an ordered listener's connection.
	answers *way
	turns   *wireListener
}

func (c *wireConn) Read(p []byte) (int, error) { return c.in.read(p) }

func (c *wireConn) Write(p []byte) (int, error) {
	if c.turns != nil {
		c.answers.asked(c.turns.next)
	}
	return c.out.write(p)
}

// Close ends both directions; the other end reads what was sent before.
func (c *wireConn) Close() error {
	c.out.end()
	c.in.leave()
	return nil
}

func (c *wireConn) CloseWrite() error {
	c.out.end()
	return nil
}

func (c *wireConn) LocalAddr() net.Addr { return c.local }

func (c *wireConn) RemoteAddr() net.Addr { return c.remote }

func (c *wireConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *wireConn) SetReadDeadline(t time.Time) error { return c.in.setRead(t) }

func (c *wireConn) SetWriteDeadline(t time.Time) error { return c.out.setWrite(t) }
