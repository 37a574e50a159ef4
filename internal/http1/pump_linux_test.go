package http1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// polledSource is an engine's connection in a loop.
type polledSource struct{ Socket }

func (polledSource) Polls() bool { return true }

// polledSink is a client's connection in a loop.
type polledSink struct {
	Socket
	out []byte
}

func (*polledSink) Start(string)          {}
func (*polledSink) Polls() bool           { return true }
func (s *polledSink) Last(p []byte) error { return s.Write(p) }
func (s *polledSink) Write(p []byte) error { // what was queued goes first
	_, err := s.Socket.Write(append(s.out, p...))
	s.out = nil
	return err
}

func (s *polledSink) TryWrite(p []byte) error {
	s.out = append(s.out, p...)
	return s.TryFlush()
}

func (s *polledSink) TryFlush() error {
	for len(s.out) > 0 {
		n, err := s.Socket.TryWrite(s.out)
		if s.out = s.out[n:]; err != nil {
			return err
		}
	}
	return nil
}

// connected gives both ends of a connection, the first one in a loop.
func connected(t testing.TB, l *Loops) (Socket, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	far, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	near, err := ln.Accept()
	require.NoError(t, err)
	looped := l.Take(near).(Socket)
	t.Cleanup(func() { looped.Close(); far.Close() })
	return looped, far.(*net.TCPConn)
}

// picky is a tap that waits for some events, holds some back, changes some, and fails at the word "fail".
type picky struct{ seen int }

var errPicky = errors.New("the tap fails")

func (p *picky) Event(dst []byte, ev openai.Event, mayWait bool) ([]byte, error) {
	if !mayWait && bytes.Contains(ev.Data, []byte("wait")) {
		return dst, ErrWaits
	}
	p.seen++
	switch {
	case bytes.Contains(ev.Data, []byte("fail")):
		return dst, errPicky
	case bytes.Contains(ev.Data, []byte("hold")):
		return dst, nil
	case bytes.Contains(ev.Data, []byte("grow")):
		dst = append(dst, bytes.Repeat([]byte(": grown\n\n"), 1000)...)
	}
	return append(dst, ev.Raw...), nil
}

// script makes a stream of events that ends whole or cut off.
func relayScript(rng *rand.Rand) []byte {
	var b bytes.Buffer
	kinds := []string{"token", "token", "token", "wait", "hold", "grow", strings.Repeat("long ", 4000)}
	for i := range rng.IntN(200) {
		kind := kinds[rng.IntN(len(kinds))]
		if rng.IntN(400) == 0 {
			kind = "fail"
		}
		fmt.Fprintf(&b, "data: {\"n\":%d,%q:1}\n\n", i, kind)
	}
	switch rng.IntN(4) {
	case 0:
		b.WriteString("data: half an ev")
	case 1:
		b.WriteString("data: [DONE]")
	default:
		b.WriteString("data: [DONE]\n\n")
	}
	return b.Bytes()
}

// twins relays one script through the loop and through a goroutine, with other cuts and stalls, and compares what
// came through and how it ended.
func twins(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 14))
	stream := relayScript(rng)
	var want sink
	wantErr := Relay(&cut{data: stream, rng: rng}, &want, &picky{}, nil)

	l := NewLoops()
	from, engine := connected(t, l)
	to, client := connected(t, l)
	var got []byte
	var all sync.WaitGroup
	all.Go(func() {
		defer engine.Close()
		rng := rand.New(rand.NewPCG(seed, 15))
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), 1+rng.IntN(1+rng.IntN(20_000)))
			if _, err := engine.Write(rest[:n]); err != nil {
				return // the tap failed
			}
			rest = rest[n:]
		}
	})
	all.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 16))
		for buf := make([]byte, 1<<16); ; {
			n, err := client.Read(buf[:1+rng.IntN(len(buf))])
			if got = append(got, buf[:n]...); err != nil {
				return
			}
		}
	})
	err := Relay(polledSource{from}, &polledSink{Socket: to}, &picky{}, nil)
	from.Close()
	to.Close()
	all.Wait()
	assert.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err), "seed %d: the loop ends with %v, the goroutine with %v", seed, err, wantErr)
	assert.Equal(t, want.all(), string(got),
		"seed %d: %d bytes came through the loop, %d through the goroutine", seed, len(got), len(want.all()))
}

func TestLoopAndGoroutineAreTwins(t *testing.T) {
	for seed := range uint64(20) {
		twins(t, seed)
	}
}

func FuzzLoopAndGoroutineAreTwins(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(twins)
}

// flood is an engine's connection that has always more to give, once its first byte has come.
type flood struct {
	polledSource
	on bool
}

func (f *flood) TryRead(p []byte) (int, error) {
	if !f.on {
		n, err := f.polledSource.TryRead(p[:1])
		f.on = n > 0
		return n, err
	}
	return copy(p, bytes.Repeat([]byte("data: {}\n\n"), len(p)/10)), nil
}

// until is a tap that drops every event until its function ends the stream.
type until func() error

func (f until) Event(dst []byte, _ openai.Event, _ bool) ([]byte, error) { return dst, f() }

// TestAFloodHoldsUpNoOthers: while an engine sends without end, and nothing of it leaves, the loop serves other
// connections.
func TestAFloodHoldsUpNoOthers(t *testing.T) {
	l := NewLoops()
	from, engine := connected(t, l)
	to, _ := connected(t, l)
	var others []*net.TCPConn
	var served atomic.Int32
	for range runtime.GOMAXPROCS(0) { // which all loops share
		near, far := connected(t, l)
		near.OnReadable(func() { served.Add(1) })
		others = append(others, far)
	}
	_, err := engine.Write([]byte("\n"))
	require.NoError(t, err)
	errServed, events := errors.New("served"), 0
	err = Relay(&flood{polledSource: polledSource{from}}, &polledSink{Socket: to}, until(func() error {
		if events++; events == 2 {
			for _, far := range others {
				far.Write([]byte("x"))
			}
		}
		switch {
		case int(served.Load()) == len(others):
			return errServed
		case events == 1<<26:
			return fmt.Errorf("%d of %d others were served", served.Load(), len(others))
		}
		return nil
	}), nil)
	assert.ErrorIs(t, err, errServed)
}

// TestEitherEndMayBreak closes one of the two connections in mid-stream: the relay ends at once, and names the end.
func TestEitherEndMayBreak(t *testing.T) {
	const event = "data: {\"token\":1}\n\n"
	for name, c := range map[string]struct {
		breaks func(engine, client *net.TCPConn, from, to Socket)
		client bool // the client's end is named
	}{
		"the engine resets":       {func(engine, _ *net.TCPConn, _, _ Socket) { engine.SetLinger(0); engine.Close() }, false},
		"the client resets":       {func(_, client *net.TCPConn, _, _ Socket) { client.SetLinger(0); client.Close() }, true},
		"the call is cut":         {func(_, _ *net.TCPConn, from, _ Socket) { from.Close() }, false},
		"the gateway shuts down":  {func(_, _ *net.TCPConn, _, to Socket) { to.Close() }, true},
		"the engine just goes on": {func(engine, _ *net.TCPConn, _, _ Socket) { engine.CloseWrite() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLoops()
			from, engine := connected(t, l)
			to, client := connected(t, l)
			ended := make(chan error, 1)
			go func() { ended <- Relay(polledSource{from}, &polledSink{Socket: to}, &picky{}, nil) }()
			io.WriteString(engine, event)
			_, err := io.ReadFull(client, make([]byte, len(event)))
			require.NoError(t, err)
			c.breaks(engine, client, from, to)
			for len(ended) == 0 { // a client that is gone shows at a write
				_, _ = io.WriteString(engine, event)
			}
			var gone *WriteError
			assert.Equal(t, c.client, errors.As(<-ended, &gone))
		})
	}
}
