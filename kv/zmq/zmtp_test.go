package zmq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(b []byte, limit int) (Frames, error) {
	d := decoder{r: bufio.NewReader(bytes.NewReader(b)), max: limit}
	return d.next()
}

func TestFramesComeBack(t *testing.T) {
	for _, sizes := range [][]int{{0}, {1, 8, 0}, {255}, {256}, {3, readChunk, 5}, {3*readChunk + 1}} {
		var frames [][]byte
		for _, n := range sizes {
			frames = append(frames, bytes.Repeat([]byte{7}, n))
		}
		m, err := read(appendMessage(nil, frames), 1<<20)
		assert.True(t, err == nil && slices.EqualFunc(m.Frames, frames, bytes.Equal), "%v: %v", sizes, err)
	}
	m, err := read(appendCommand(nil, "SUBSCRIBE", bytes.Repeat([]byte{'x'}, 300)), 10)
	assert.True(t, err == nil && m.Command == "SUBSCRIBE" && len(m.Body) == 300, "%+v, %v", m, err)
}

func TestBrokenFrames(t *testing.T) {
	huge := binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<62)
	many := bytes.Repeat([]byte{flagMore, 0}, maxFrames+1)
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"nothing":                  {nil, io.EOF},
		"unknown flags":            {[]byte{0x80, 0}, errProtocol},
		"impossible length":        {huge, errProtocol},
		"too many frames":          {many, errProtocol},
		"empty command":            {[]byte{flagCommand, 0}, errProtocol},
		"command's name too long":  {[]byte{flagCommand, 2, 9, 'x'}, errProtocol},
		"command inside a message": {[]byte{flagMore, 0, flagCommand, 2, 1, 'x'}, errProtocol},
		"cut short":                {[]byte{0, 5, 1, 2}, io.ErrUnexpectedEOF},
		"long and cut short":       {append(binary.BigEndian.AppendUint64([]byte{flagLong}, 1<<20), 1), io.ErrUnexpectedEOF},
	} {
		_, err := read(c.bytes, 1<<21)
		assert.ErrorIs(t, err, c.want, "%s: %v, want %v", name, err, c.want)
	}
}

func TestTooBigIsReadPast(t *testing.T) {
	b := appendMessage(nil, [][]byte{{1}, make([]byte, 5000), {2}})
	b = appendMessage(b, [][]byte{{3}})
	d := decoder{r: bufio.NewReader(bytes.NewReader(b)), max: 100}
	m, err := d.next()
	require.True(t, err == nil && m.TooBig && m.Frames == nil, "%+v, %v", m, err)
	m, err = d.next()
	require.True(t, err == nil && !m.TooBig && bytes.Equal(m.Frames[0], []byte{3}), "%+v, %v", m, err)
}

// Whatever comes, nothing panics, limits hold, and what was read can be written so that it reads the same.
func FuzzDecode(f *testing.F) {
	f.Add(appendMessage(nil, [][]byte{{1}, {2, 3}, make([]byte, 300)}))
	f.Add(appendReady(nil, SUB))
	f.Add(appendCommand(nil, "PING", []byte{0, 0, 1}))
	f.Add([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1000
		d := decoder{r: bufio.NewReader(bytes.NewReader(b)), max: limit}
		for {
			m, err := d.next()
			if err != nil {
				return
			}
			size := 0
			for _, frame := range m.Frames {
				size += len(frame)
			}
			require.True(t, size <= limit && len(m.Frames) <= maxFrames && (!m.TooBig || m.Frames == nil),
				"%d bytes in %d frames", size, len(m.Frames))
			again := appendMessage(nil, m.Frames)
			if m.Command != "" {
				again = appendCommand(nil, m.Command, m.Body)
			} else if m.TooBig {
				continue
			}
			back, err := read(again, limit)
			if err != nil || back.Command != m.Command || !bytes.Equal(back.Body, m.Body) || !slices.EqualFunc(back.Frames, m.Frames, bytes.Equal) {
				t.Fatalf("%+v reads back as %+v, %v", m, back, err)
			}
		}
	})
}

func TestEndpoints(t *testing.T) {
	for text, binds := range map[string]bool{"tcp://*:5557": true, "tcp://0.0.0.0:0": true, "tcp://[::]:1": true, "tcp://h:1": false,
		"tcp://[::1]:65535": false} {
		e, err := ParseEndpoint(text)
		assert.True(t, err == nil && e.Binds() == binds, "%s: %+v, %v", text, e, err)
	}
	for _, text := range []string{"", "tcp://", "tcp://h", "tcp://:1", "tcp://h:0", "tcp://h:65536", "tcp://h:x", "ipc://x", "http://h:1"} {
		e, err := ParseEndpoint(text)
		assert.Error(t, err, "%s is taken as %+v", text, e)
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return ln
}

// What is no peer gets an error, soon: another protocol, a kind of socket that does not match, silence.
func TestNoPeers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	pub, web, mute := listen(t), listen(t), listen(t)
	all.Go(func() { Serve(ctx, pub, PUB, Options{}, func(context.Context, *Conn) {}, func(error) {}) })
	all.Go(func() {
		c, err := web.Accept()
		if err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close and much more\r\n\r\n")
			c.Close()
		}
	})
	defer web.Close()
	defer mute.Close()
	for name, c := range map[string]struct {
		at   net.Listener
		want error
	}{"another kind": {pub, errPeer}, "another protocol": {web, errProtocol}, "silence": {mute, nil}} {
		conn, err := Dial(ctx, c.at.Addr().String(), DEALER, Options{HandshakeTimeout: 300 * time.Millisecond})
		assert.True(t, err != nil && (c.want == nil || errors.Is(err, c.want)), "%s: %v", name, err)
		if conn != nil {
			conn.Close()
		}
	}
}

// A peer that falls silent is asked, and given up when it does not answer.
func TestSilentPeerIsGivenUp(t *testing.T) {
	ln := listen(t)
	defer ln.Close()
	asked := make(chan string, 10)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		_, _ = nc.Write(append(appendGreeting(nil), appendReady(nil, PUB)...))
		_, _ = io.CopyN(io.Discard, nc, greetingBytes)
		d := decoder{r: bufio.NewReader(nc), max: 100}
		for {
			m, err := d.next()
			if err != nil {
				return
			}
			asked <- m.Command
		}
	})
	c, err := Dial(t.Context(), ln.Addr().String(), SUB, Options{Heartbeat: 10 * time.Millisecond})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Read()
	assert.Error(t, err)
	assert.Equal(t, [2]string{"READY", "PING"}, [2]string{<-asked, <-asked})
}
