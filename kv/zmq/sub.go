package zmq

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/guard"
)

// SubConfig is how a [Sub] works. The zero value of each field but Endpoint means its default.
type SubConfig struct {
	Options
	Endpoint Endpoint // of the publisher; a [Hub] awaits publishers that connect
	Topic    string   // what the first frame of a message must begin with
	// ReconnectMin and ReconnectMax bound the time between attempts to connect, by default 100 ms and 5 s. It doubles
	// from one to the next, less a part by chance out of Seed.
	ReconnectMin, ReconnectMax time.Duration
	Seed                       uint64

	// Connected is called when a publisher has been subscribed to, Lost when that connection has ended, and Message
	// for each message of the topic in between; Frames are the callee's. One call at a time. Message may wait: what
	// comes meanwhile stays in the socket, and a publisher drops what does not fit there.
	Connected func()
	Lost      func(error)
	Message   func(Frames)
	Failed    func(error) // an attempt to connect failed; may be nil
}

// Sub follows one publisher, to which it connects.
type Sub struct {
	cfg SubConfig
	rng *rand.Rand
}

// NewSub returns a Sub that has not begun.
func NewSub(cfg SubConfig) *Sub {
	cfg.Options = cfg.Options.withDefaults()
	cfg.ReconnectMin = cmp.Or(cfg.ReconnectMin, 100*time.Millisecond)
	cfg.ReconnectMax = max(cmp.Or(cfg.ReconnectMax, 5*time.Second), cfg.ReconnectMin)
	if cfg.Failed == nil {
		cfg.Failed = func(error) {}
	}
	return &Sub{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0))}
}

// Run follows until ctx ends. It may be called once.
func (s *Sub) Run(ctx context.Context) {
	wait := guard.Backoff{Min: s.cfg.ReconnectMin, Max: s.cfg.ReconnectMax}
	for failures := 0; ctx.Err() == nil; failures++ {
		began, err := s.dial(ctx)
		if began {
			failures = 0
		} else if err != nil && ctx.Err() == nil {
			s.cfg.Failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Delay(failures, s.rng)):
		}
	}
}

// dial connects to the publisher and follows it until the connection ends.
func (s *Sub) dial(ctx context.Context) (began bool, err error) {
	c, err := Dial(ctx, s.cfg.Endpoint.Address(), SUB, s.cfg.Options)
	if err != nil {
		return false, err
	}
	return s.follow(ctx, c), nil
}

// follow takes what a publisher sends, and closes c.
func (s *Sub) follow(ctx context.Context, c *Conn) (began bool) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer c.Close()
	if err := c.Subscribe(s.cfg.Topic); err != nil {
		s.cfg.Failed(err)
		return false
	}
	s.cfg.Connected()
	for {
		m, err := c.Read()
		switch {
		case err != nil:
			s.cfg.Lost(err)
			return true
		case m.Command != "":
		case m.TooBig, len(m.Frames) > 0 && bytes.HasPrefix(m.Frames[0], []byte(s.cfg.Topic)):
			s.cfg.Message(m)
		}
	}
}

// maxConns is how many connections a bound socket serves at once.
const maxConns = 256

// Serve accepts connections on ln, which it closes, until ctx ends. It agrees with each peer as a socket of that
// kind, and handles it in a goroutine of its own. All have ended when it returns. failed is called for what goes
// wrong before that, maybe concurrently.
func Serve(ctx context.Context, ln net.Listener, kind Kind, opts Options, handle func(context.Context, *Conn), failed func(error)) {
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer ln.Close()
	opts = opts.withDefaults()
	slots := make(chan struct{}, maxConns)
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as no file descriptors: others may free some
			failed(fmt.Errorf("accept: %w", err))
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = nc.Close()
			failed(fmt.Errorf("more than %d connections", maxConns))
			continue
		}
		conns.Go(func() {
			defer func() { <-slots }()
			c, err := handshake(ctx, nc, kind, opts)
			if err != nil {
				failed(err)
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			defer c.Close()
			handle(ctx, c)
		})
	}
}
