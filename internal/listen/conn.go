package listen

import (
	"net"
	"net/http"
)

// Conn is a connection that its listener counts until it is closed. A new one is idle until its server calls Busy. Its
// methods may be called concurrently.
type Conn struct {
	net.Conn
	l *Listener

	// Guarded by l.mu.
	left       bool // no longer counted
	listed     bool // in the list of the idle
	prev, next *Conn
}

// Busy says that a request is in hand: the connection is not closed to make room.
func (c *Conn) Busy() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.idle.remove(c)
}

// Idle says that no request is in hand, as of now.
func (c *Conn) Idle() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.left {
		return
	}
	c.l.idle.remove(c)
	c.l.idle.push(c)
	c.l.room.Signal()
}

// Close closes the connection and makes room for another.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.idle.remove(c)
	if !c.left {
		c.left = true
		c.l.open--
		c.l.room.Signal()
	}
	return err
}

// ConnState is an http.Server's ConnState for a server on a [Listener].
func ConnState(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*Conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive, http.StateHijacked:
		c.Busy()
	case http.StateIdle:
		c.Idle()
	}
}

// conns is a list of idle connections, the longest idle first.
type conns struct{ root Conn }

func (cs *conns) init() { cs.root.prev, cs.root.next = &cs.root, &cs.root }

func (cs *conns) oldest() *Conn {
	if cs.root.next == &cs.root {
		return nil
	}
	return cs.root.next
}

func (cs *conns) push(c *Conn) {
	last := cs.root.prev
	c.prev, c.next = last, &cs.root
	last.next, cs.root.prev = c, c
	c.listed = true
}

func (cs *conns) remove(c *Conn) {
	if c.listed {
		c.prev.next, c.next.prev = c.next, c.prev
		c.prev, c.next, c.listed = nil, nil, false
	}
}
