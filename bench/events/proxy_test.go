package main

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/zmq/zmtp"
	"github.com/tandem-pd/tandem/lab/zmqpub"
)

// The proxy loses the messages that it is told to, whole, and no others; it refuses connections and cuts them.
func TestProxy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	defer runs.Wait()
	defer cancel()
	ln, err := loopback(ctx, "tcp", "*:0")
	if err != nil {
		t.Fatal(err)
	}
	pub := zmqpub.NewSocket(zmqpub.SocketConfig{})
	runs.Go(func() { pub.Serve(ctx, ln) })
	p, err := newProxy(func(frames [][]byte) verdict {
		if len(frames) == 3 && binary.BigEndian.Uint64(frames[1])%3 == 0 {
			return drop
		}
		return pass
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.lead(ln.Addr().(*net.TCPAddr).Port)

	var mu sync.Mutex
	var got []uint64
	lost := 0
	sub := zmtp.SubConfig{ReconnectMin: time.Millisecond, ReconnectMax: 5 * time.Millisecond}
	if sub.Endpoint, err = zmtp.ParseEndpoint(p.address()); err != nil {
		t.Fatal(err)
	}
	sub.Connected, sub.Failed = func() {}, func(error) {}
	sub.Lost = func(error) { mu.Lock(); defer mu.Unlock(); lost++ }
	sub.Message = func(m zmtp.Message) {
		mu.Lock()
		defer mu.Unlock()
		if len(m.Frames) != 3 || len(m.Frames[2]) != 1000 {
			t.Errorf("%d frames", len(m.Frames))
		}
		got = append(got, binary.BigEndian.Uint64(m.Frames[1]))
	}
	runs.Go(func() { zmtp.NewSub(sub).Run(ctx) })
	wait := func(what string, condition func() bool) {
		t.Helper()
		if err := until(ctx, 10*time.Second, what, func() bool { mu.Lock(); defer mu.Unlock(); return condition() }); err != nil {
			t.Fatal(err)
		}
	}
	wait("subscribed", func() bool { return pub.Subscribers() == 1 })
	for i := range uint64(9) {
		pub.Send([]byte("topic"), binary.BigEndian.AppendUint64(nil, i), make([]byte, 1000))
	}
	wait("what is not dropped comes", func() bool { return slices.Equal(got, []uint64{1, 2, 4, 5, 7, 8}) })

	p.refuse(true)
	wait("cut", func() bool { return lost == 1 && pub.Subscribers() == 0 })
	p.refuse(false)
	wait("subscribed again", func() bool { return pub.Subscribers() == 1 })
	if n := p.cut(); n != 1 {
		t.Errorf("%d connections cut", n)
	}
	wait("cut again", func() bool { return lost == 2 })
}
