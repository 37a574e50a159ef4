package zmqpub

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/internal/kvevents/zmq/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A subscriber that reads nothing costs its own messages above the high-water mark and nobody else's.
func TestSlowSubscriberLosesItsOwn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := NewSocket(SocketConfig{HighWater: 10})
	all.Go(func() { p.Serve(ctx, ln) })
	c, err := zmtp.Dial(ctx, ln.Addr().String(), zmtp.SUB, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Subscribe("a"); err != nil {
		t.Fatal(err)
	}
	for p.Subscribers() == 0 {
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	big := make([]byte, 1<<20)
	for p.Dropped() == 0 {
		p.Send([]byte("a"), big)
	}
	p.Send([]byte("b"), []byte("of no topic"))
	m, err := c.Read()
	if err != nil || len(m.Frames) != 2 || string(m.Frames[0]) != "a" {
		t.Errorf("%+v, %v", m.Command, err)
	}
}

// Each engine binds what it binds, and connects to the rest, where no subscriber finds it.
func TestWhatEnginesBind(t *testing.T) {
	for _, c := range []struct {
		dialect  wire.Dialect
		endpoint string
		binds    bool
	}{
		{wire.VLLM, "tcp://*:0", true}, {wire.VLLM, "tcp://[::]:0", true}, {wire.VLLM, "tcp://127.0.0.1:1", false}, {wire.VLLM, "tcp://0.0.0.0:1", false},
		{wire.VLLMArrays, "tcp://0.0.0.0:1", false}, {wire.VLLM, "tcp://gpu-1:1", false},
		{wire.SGLang, "tcp://*:0", true}, {wire.SGLang, "tcp://0.0.0.0:0", true}, {wire.SGLangFirst, "tcp://0.0.0.0:0", true}, {wire.SGLang, "tcp://127.0.0.1:1", false},
		{wire.TensorRT, "tcp://*:0", true},
	} {
		p, err := New(Config{Endpoint: c.endpoint, Dialect: c.dialect})
		if err != nil {
			t.Fatal(err)
		}
		if at, _ := p.Ports(); at != 0 != c.binds {
			t.Errorf("%v %s is bound at %d, want bound: %v", c.dialect, c.endpoint, at, c.binds)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
