package http1

import (
	"net"
	"net/http"
)

// Conn is a connection that its listener counts until it is closed. A new one is idle until its server calls Busy.
// Its methods may be called concurrently.
type Conn struct {
	net.Conn
	l *Listener

	// Guarded by l.mu.
	left         bool  // no longer counted
	older, newer *Conn // its neighbours among the idle, or the list's ends; nil while it is busy
}

// Busy marks the connection as having a request: it is not closed to make room.
func (c *Conn) Busy() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.busy()
}

// Idle marks the connection as having no request, as of now.
func (c *Conn) Idle() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.left {
		return
	}
	c.busy()
	c.l.rest(c)
	c.l.room.Signal()
}

// Close closes the connection and makes room for another.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.busy()
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

// busy takes c off the list of the idle. The caller holds l.mu.
func (c *Conn) busy() {
	if c.older != nil {
		c.older.newer, c.newer.older = c.newer, c.older
		c.older, c.newer = nil, nil
	}
}
