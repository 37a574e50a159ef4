package zmq

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Options are what connections have in common. The zero value of each field means its default.
type Options struct {
	MaxMessageBytes  int           // of one message, 64 MiB; a bigger one is skipped
	HandshakeTimeout time.Duration // for a connection to be made and agreed on, 5 s
	WriteTimeout     time.Duration // for a peer to take something of what is written, 10 s
	// Heartbeat is after how much silence a peer is pinged, by default 10 s. One that is silent three times as long is
	// given up. Peers that speak ZMTP 3.0 know no ping; there TCP's own keep-alive must do.
	Heartbeat time.Duration
	// Dial replaces net.Dialer's and Listen net.ListenConfig's, for tests.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

func (o Options) withDefaults() Options {
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 64<<20)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 5*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, 10*time.Second)
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Listen == nil {
		o.Listen = new(net.ListenConfig).Listen
	}
	return o
}

// misses is how many heartbeats a peer may leave unanswered.
const misses = 3

// Conn is one connection that both sides have agreed on. One goroutine may read and others write.
type Conn struct {
	kind  Kind
	nc    net.Conn
	opts  Options
	in    decoder
	minor byte // of the peer's version

	mu  sync.Mutex // guards out and what is written
	out []byte
}

// Dial connects to address and agrees with the peer. The Conn is to be closed.
func Dial(ctx context.Context, address string, kind Kind, opts Options) (*Conn, error) {
	opts = opts.withDefaults()
	limited, cancel := context.WithTimeout(ctx, opts.HandshakeTimeout)
	defer cancel()
	nc, err := opts.Dial(limited, "tcp", address)
	if err != nil {
		return nil, err
	}
	return handshake(ctx, nc, kind, opts)
}

// handshake agrees with the peer at the other end of nc, which it closes when that fails.
func handshake(ctx context.Context, nc net.Conn, kind Kind, opts Options) (_ *Conn, err error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = nc.Close()
		}
	}()
	c := &Conn{kind: kind, nc: nc, opts: opts}
	c.in = decoder{r: bufio.NewReaderSize(nc, 64<<10), max: opts.MaxMessageBytes}
	if err := nc.SetDeadline(time.Now().Add(opts.HandshakeTimeout)); err != nil {
		return nil, err
	}
	if _, err := nc.Write(appendGreeting(nil)); err != nil {
		return nil, err
	}
	if c.minor, err = readGreeting(c.in.r); err != nil {
		return nil, err
	}
	if _, err := nc.Write(appendReady(nil, kind)); err != nil {
		return nil, err
	}
	if err := readReady(&c.in, kind); err != nil {
		return nil, err
	}
	return c, nc.SetDeadline(time.Time{})
}

// Close ends the connection. Reads and writes fail.
func (c *Conn) Close() error { return c.nc.Close() }

// Write sends one message. It keeps nothing of frames.
func (c *Conn) Write(frames ...[]byte) error {
	return c.flush(func(out []byte) []byte { return appendMessage(out, frames) })
}

// Subscribe subscribes to messages whose first frame begins with prefix.
func (c *Conn) Subscribe(prefix string) error {
	return c.flush(func(out []byte) []byte {
		if c.minor == 0 { // it has no such command
			return appendMessage(out, [][]byte{append([]byte{1}, prefix...)})
		}
		return appendCommand(out, "SUBSCRIBE", []byte(prefix))
	})
}

// flush writes what fill appends, whole.
func (c *Conn) flush(fill func(out []byte) []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out = fill(c.out[:0])
	if err := c.nc.SetWriteDeadline(time.Now().Add(c.opts.WriteTimeout)); err != nil {
		return err
	}
	_, err := c.nc.Write(c.out)
	if cap(c.out) > 1<<20 { // a big message is rare
		c.out = nil
	}
	return err
}

// Read waits for the next message or command, and answers heartbeats meanwhile. A peer that stays silent for good is
// found by heartbeats.
func (c *Conn) Read() (Frames, error) {
	for silent := 0; ; {
		if c.in.r.Buffered() == 0 {
			if err := c.nc.SetReadDeadline(time.Now().Add(c.opts.Heartbeat)); err != nil {
				return Frames{}, err
			}
			if _, err := c.in.r.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) {
				if silent++; c.minor > 0 && silent >= misses {
					return Frames{}, fmt.Errorf("the peer was silent for %v: %w", misses*c.opts.Heartbeat, err)
				}
				if err := c.ping(); err != nil {
					return Frames{}, err
				}
				continue
			} else if err != nil {
				return Frames{}, err
			}
		}
		silent = 0
		// What has begun must end: a frame that stops halfway is as silent as none.
		if err := c.nc.SetReadDeadline(time.Now().Add(misses * c.opts.Heartbeat)); err != nil {
			return Frames{}, err
		}
		m, err := c.in.next()
		if err != nil {
			return Frames{}, err
		}
		if !c.chores(&m) {
			return m, nil
		}
	}
}

// ReadBefore is Read with a deadline.
func (c *Conn) ReadBefore(deadline time.Time) (Frames, error) {
	for {
		if err := c.nc.SetReadDeadline(deadline); err != nil {
			return Frames{}, err
		}
		m, err := c.in.next()
		if err != nil || !c.chores(&m) {
			return m, err
		}
	}
}

// chores answers a heartbeat, and reports whether m was one or its answer.
func (c *Conn) chores(m *Frames) bool {
	switch m.Command {
	case "PING":
		if len(m.Body) >= 2 { // a time to live, and a context that is given back
			_ = c.flush(func(out []byte) []byte { return appendCommand(out, "PONG", m.Body[2:min(len(m.Body), 18)]) })
		}
		return true
	case "PONG":
		return true
	}
	return false
}

func (c *Conn) ping() error {
	if c.minor == 0 {
		return nil
	}
	return c.flush(func(out []byte) []byte { return appendCommand(out, "PING", []byte{0, 0}) })
}
