package testkit

import (
	"io"
	"net"
	"sync"
)

// Way is the treatment of one direction's bytes. The zero Way lets them pass.
type Way struct {
	Hole bool // nothing passes, and connections stay open; what was held up passes once the hole is closed
	Drop bool // what comes is lost, and connections stay open
}

// LinkState is what a link does. The zero State passes everything.
type LinkState struct {
	Up     Way  // from the client to the server
	Down   Way  // from the server to the client
	Refuse bool // connections that come are reset
}

// Link passes connections on to one address. Its methods are safe for concurrent use.
type Link struct {
	ln     net.Listener
	target string
	runs   sync.WaitGroup

	mu      sync.Mutex // guards all below
	state   LinkState
	changed chan struct{} // closed by the next Set
	pairs   map[*pair]struct{}
	closed  bool
}

// pair is one connection through the link.
type pair struct {
	client, server *net.TCPConn
	ended          chan struct{}
	once           sync.Once
}

// NewLink starts a link to the address target, as host:port, on a free port of this machine.
func NewLink(target string) (*Link, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Link{ln: ln, target: target, changed: make(chan struct{}), pairs: map[*pair]struct{}{}}
	l.runs.Go(l.serve)
	return l, nil
}

// Addr is where the link listens, as host:port.
func (l *Link) Addr() string { return l.ln.Addr().String() }

// Set has the link do s from now on, to open connections as well.
func (l *Link) Set(s LinkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
}

// Cut resets every open connection at both ends, and returns how many there were.
func (l *Link) Cut() int {
	pairs := l.open()
	for _, p := range pairs {
		p.end()
	}
	return len(pairs)
}

// HalfClose ends the server's side of every open connection towards its client, which may go on sending. It returns
// how many there were.
func (l *Link) HalfClose() int {
	pairs := l.open()
	for _, p := range pairs {
		_ = p.client.CloseWrite()
	}
	return len(pairs)
}

// Close ends the link and every connection through it.
func (l *Link) Close() {
	_ = l.ln.Close()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.Cut()
	l.runs.Wait()
}

func (l *Link) open() (all []*pair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.pairs {
		all = append(all, p)
	}
	return all
}

func (l *Link) serve() {
	for {
		c, err := l.ln.Accept()
		if err != nil {
			return
		}
		l.runs.Go(func() { l.carry(c.(*net.TCPConn)) })
	}
}

// carry passes one connection on until either side breaks, or both have ended.
func (l *Link) carry(client *net.TCPConn) {
	p := &pair{client: client, ended: make(chan struct{})}
	l.mu.Lock()
	refuse := l.state.Refuse
	l.mu.Unlock()
	if !refuse {
		server, err := net.Dial("tcp", l.target)
		if err == nil {
			p.server = server.(*net.TCPConn)
		}
	}
	l.mu.Lock()
	if p.server == nil || l.closed {
		l.mu.Unlock()
		p.end()
		return
	}
	l.pairs[p] = struct{}{}
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.pass(p, p.server, p.client, func(s LinkState) Way { return s.Up }) })
	both.Go(func() { l.pass(p, p.client, p.server, func(s LinkState) Way { return s.Down }) })
	both.Wait()
	l.mu.Lock()
	delete(l.pairs, p)
	l.mu.Unlock()
	p.finish()
}

// pass copies one direction. A side that ends well ends the other one so; one that breaks breaks it.
func (l *Link) pass(p *pair, to, from *net.TCPConn, of func(LinkState) Way) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		drop, open := l.through(p, of)
		if !open {
			return
		}
		if drop {
			n = 0
		}
		if _, broken := to.Write(buf[:n]); broken != nil {
			p.end()
			return
		}
		switch {
		case err == io.EOF:
			_ = to.CloseWrite()
			return
		case err != nil:
			p.end()
			return
		}
	}
}

// through waits while the direction is a hole, and reports whether what passes is to be dropped, and whether the
// connection still lives.
func (l *Link) through(p *pair, of func(LinkState) Way) (drop, open bool) {
	for {
		l.mu.Lock()
		way, changed := of(l.state), l.changed
		l.mu.Unlock()
		if !way.Hole {
			return way.Drop, true
		}
		select {
		case <-changed:
		case <-p.ended:
			return false, false
		}
	}
}

// end resets both ends.
func (p *pair) end() {
	p.once.Do(func() {
		close(p.ended)
		for _, c := range []*net.TCPConn{p.client, p.server} {
			if c != nil {
				_ = c.SetLinger(0)
				_ = c.Close()
			}
		}
	})
}

// finish closes both ends after their last bytes.
func (p *pair) finish() {
	p.once.Do(func() { _, _ = p.client.Close(), p.server.Close() })
}
