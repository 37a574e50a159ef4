package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
)

// proxy stands between the subscriber and one socket of an engine, at an address that stays when the engine is
// restarted on another port. It knows ZMTP well enough to lose whole messages; it can cut every connection, and refuse
// new ones.
type proxy struct {
	ln    net.Listener
	judge func(frames [][]byte) verdict // of a message that the engine sends

	mu     sync.Mutex // guards all below
	target string     // where the engine is
	down   bool
	conns  map[net.Conn]struct{}

	runs sync.WaitGroup
}

type verdict uint8

const (
	pass verdict = iota
	drop
	sever // the connection, in place of the message
)

func newProxy(judge func([][]byte) verdict) (*proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{ln: ln, judge: judge, conns: map[net.Conn]struct{}{}}
	p.runs.Go(p.serve)
	return p, nil
}

func (p *proxy) address() string { return "tcp://" + p.ln.Addr().String() }

// lead has new connections go to a port.
func (p *proxy) lead(port int) {
	p.mu.Lock()
	p.target = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p.mu.Unlock()
}

// cut closes the connections there are and says how many they were.
func (p *proxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns) / 2 // each has two sides
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
	return n
}

// refuse closes what connects, until it is called with false.
func (p *proxy) refuse(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	if down {
		p.cut()
	}
}

func (p *proxy) close() {
	_ = p.ln.Close()
	p.refuse(true)
	p.runs.Wait()
}

func (p *proxy) serve() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.runs.Go(func() { p.carry(c) })
	}
}

// note keeps a connection to be cut, unless connections are refused now.
func (p *proxy) note(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

// carry connects one subscriber through, until either side ends.
func (p *proxy) carry(down net.Conn) {
	defer down.Close()
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer up.Close()
	defer func() {
		p.mu.Lock()
		delete(p.conns, up)
		delete(p.conns, down)
		p.mu.Unlock()
	}()
	if !p.note(up) || !p.note(down) {
		return
	}
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		_, _ = io.Copy(up, down)
		_, _ = up.Close(), down.Close()
	})
	_ = p.relay(down, bufio.NewReaderSize(up, 64<<10))
	_, _ = up.Close(), down.Close()
}

// greeting is how long ZMTP's is (RFC 23).
const greeting = 64

// relay copies what the engine sends, message by message.
func (p *proxy) relay(to io.Writer, from *bufio.Reader) error {
	if _, err := io.CopyN(to, from, greeting); err != nil {
		return err
	}
	var raw []byte // one message, or one command
	var frames [][]byte
	for {
		raw, frames = raw[:0], frames[:0]
		command := false
		for more := true; more; {
			flags, begin, size, err := readFrame(from, &raw)
			if err != nil {
				return err
			}
			more, command = flags&frameMore != 0, flags&frameCommand != 0
			frames = append(frames, raw[begin:begin+size:begin+size])
		}
		if !command {
			switch p.judge(frames) {
			case drop:
				continue
			case sever:
				return nil
			}
		}
		if _, err := to.Write(raw); err != nil {
			return err
		}
	}
}

// A frame's flags (RFC 23).
const (
	frameMore    = 1
	frameLong    = 2
	frameCommand = 4
)

// mostFrame bounds what the proxy takes for a frame.
const mostFrame = 256 << 20

// readFrame appends one frame to raw as it is on the wire, and says where its body is.
func readFrame(from *bufio.Reader, raw *[]byte) (flags byte, begin, size int, err error) {
	if flags, err = from.ReadByte(); err != nil {
		return 0, 0, 0, err
	}
	head := []byte{flags, 0}
	if flags&frameLong != 0 {
		head = append(head, make([]byte, 7)...)
	}
	if _, err = io.ReadFull(from, head[1:]); err != nil {
		return 0, 0, 0, err
	}
	size = int(head[1])
	if flags&frameLong != 0 {
		if n := binary.BigEndian.Uint64(head[1:]); n > mostFrame {
			return 0, 0, 0, fmt.Errorf("a frame of %d bytes", n)
		} else {
			size = int(n)
		}
	}
	*raw = append(*raw, head...)
	begin = len(*raw)
	*raw = append(*raw, make([]byte, size)...)
	_, err = io.ReadFull(from, (*raw)[begin:])
	return flags, begin, size, err
}
