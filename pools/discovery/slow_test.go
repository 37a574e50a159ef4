package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
)

// forward is an SGLang whose scheduler computes in passes, as srt/entrypoints/http_server.py of 0.5.23 has it: /health sends a
// token's worth of work and looks once a second whether the scheduler has answered since, for 20 s; /server_info waits for the
// scheduler; /ready is what /health found last; /v1/models needs no scheduler.
type forward struct {
	mu       sync.Mutex // guards all below
	busy     time.Time  // the end of the pass that is computed
	bad      bool       // what /health found last
	crashed  time.Time  // zero: it has not
	old      bool       // a release before 0.5.20
	seed     int
	healthed int

	conns chan net.Conn
}

func (e *forward) set(change func(e *forward)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

// asked is how often it was to generate a token.
func (e *forward) asked() (n int) {
	e.set(func(e *forward) { n = e.healthed })
	return n
}

// dial connects to it, and is refused where it has ended.
func (e *forward) dial(context.Context, string, string) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.crashed.IsZero() && time.Since(e.crashed) >= 5*time.Second {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	here, there := net.Pipe()
	e.conns <- there
	return here, nil
}

func (e *forward) Accept() (net.Conn, error) {
	if c, ok := <-e.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (e *forward) Close() error   { close(e.conns); return nil }
func (e *forward) Addr() net.Addr { return &net.TCPAddr{} }

func (e *forward) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	crashed, busy, bad, old, seed := e.crashed, e.busy, e.bad, e.old, e.seed
	e.mu.Unlock()
	if !crashed.IsZero() { // its main thread sleeps before it ends the process (srt/managers/tokenizer_manager.py)
		select {
		case <-r.Context().Done():
		case <-time.After(time.Until(crashed.Add(5 * time.Second))):
		}
		panic(http.ErrAbortHandler)
	}
	switch r.URL.Path {
	case "/ready":
		switch {
		case old:
			http.NotFound(w, r)
		case bad:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "/health":
		e.set(func(e *forward) { e.healthed++ })
		for range 20 {
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
				return
			}
			if e.set(func(e *forward) { busy = e.busy }); !time.Now().Before(busy) {
				e.set(func(e *forward) { e.bad = false })
				return
			}
		}
		e.set(func(e *forward) { e.bad = true })
		w.WriteHeader(http.StatusServiceUnavailable)
	case "/server_info":
		select {
		case <-time.After(time.Until(busy)):
		case <-r.Context().Done():
		}
		fmt.Fprintf(w, `{"page_size":16,"max_total_num_tokens":1600,"dp_size":1,"tp_size":1,"disaggregation_mode":"null","random_seed":%d,"version":"0.5.23"}`, seed)
	case "/v1/models":
		fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"sglang"}]}`)
	default:
		http.NotFound(w, r)
	}
}

// probed runs a Prober over e in virtual time; up reports whether e takes requests.
func probed(t *testing.T, e *forward, every time.Duration, do func(p *Prober, up func() bool, id func() string)) {
	synctest.Test(t, func(t *testing.T) {
		e.conns = make(chan net.Conn, 16)
		server := &http.Server{Handler: e, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(e) })
		roster := pools.NewRoster(pools.Config{}, quiet)
		p := NewProber(roster.From("flags"), ProberConfig{Every: every, Dial: e.dial}, quiet)
		p.Set(list(t, "both http://w:1,id=w1"))
		ctx, cancel := context.WithCancel(t.Context())
		running.Go(func() { _ = p.Run(ctx) })
		do(p, func() bool {
			synctest.Wait()
			m, ok := roster.Lookup("w1")
			return ok && m.Eligible(time.Now())
		}, func() string {
			synctest.Wait()
			if m, ok := roster.Lookup("w1"); ok {
				return m.Worker.Incarnation
			}
			return ""
		})
		cancel()
		_ = server.Close()
		running.Wait()
	})
}

// An SGLang joins whatever the interval, of releases with and without a cheap path, and generates a token for its health rarely.
func TestSGLangJoinsAtAnyInterval(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, time.Minute} {
		for _, old := range []bool{false, true} {
			e := &forward{old: old}
			probed(t, e, every, func(_ *Prober, up func() bool, _ func() string) {
				time.Sleep(2 * time.Second)
				assert.True(t, up(), "every %v, old %t: not there", every, old)
				first := e.asked()
				for range 300 {
					time.Sleep(time.Second)
					require.True(t, up(), "every %v, old %t: taken out", every, old)
				}
				if n := e.asked() - first; n < 300/max(12, 2*int(every.Seconds())) || n > 31 {
					t.Errorf("every %v, old %t: generated %d tokens in 300 s", every, old, n)
				}
			})
		}
	}
}

// A worker in a pass of 19 s stays; one whose scheduler hangs for good is out once its own /health has given it up, and back when that
// has found it well.
func TestSGLangForwardPasses(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
		e := &forward{}
		probed(t, e, every, func(_ *Prober, up func() bool, id func() string) {
			time.Sleep(2 * time.Second)
			first := id()
			e.set(func(e *forward) { e.busy = time.Now().Add(19 * time.Second) })
			for range 60 {
				time.Sleep(time.Second)
				require.True(t, up() && id() == first, "every %v: taken out in a forward pass", every)
			}
			e.set(func(e *forward) { e.busy = time.Now().Add(10 * time.Minute) })
			time.Sleep(45 * time.Second)
			assert.False(t, up(), "every %v: a scheduler that hangs is not found", every)
			time.Sleep(5 * time.Minute)
			assert.False(t, up(), "every %v: a scheduler that hangs is back", every)
			e.set(func(e *forward) { e.busy = time.Now() })
			time.Sleep(every + 30*time.Second)
			assert.True(t, up(), "every %v: not back", every)
		})
	}
}

// The end of the connection of its KV events keeps new requests from a worker that has crashed, though its port still accepts
// connections; where the worker answers, it is as it was.
func TestCrashedSGLangIsTakenOutAtOnce(t *testing.T) {
	e := &forward{}
	probed(t, e, 5*time.Second, func(p *Prober, up func() bool, id func() string) {
		time.Sleep(2 * time.Second)
		first := id()
		p.Ended("unknown")
		p.Ended("w1")
		p.Ended("w1")
		assert.True(t, up() && id() == first, "a worker that answers is not as it was")
		e.set(func(e *forward) { e.crashed = time.Now() })
		p.Ended("w1")
		assert.False(t, up(), "it gets requests before it has answered")
		time.Sleep(aliveWithin)
		assert.Empty(t, id(), "it is still there")
		time.Sleep(10 * time.Second)
		e.set(func(e *forward) { e.crashed, e.seed = time.Time{}, 1 })
		time.Sleep(6 * time.Second)
		assert.True(t, up() && id() != first, "the next process is not there, as another")
	})
}
