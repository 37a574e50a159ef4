package discovery

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pools"
)

// A worker whose HTTP server is too busy to answer stays in while it generates, and goes once it does not. A port that is closed, or an
// answer that it is not well, counts whatever came before.
func TestAWorkerThatGeneratesIsWell(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"it generates nothing more", "it is not well", "its port is closed"} {
		s := newStock(t, vllm("m"))
		var busy, generates atomic.Bool
		var asked atomic.Int32
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if busy.Load() {
				<-r.Context().Done()
				return
			}
			s.answer(w, r)
		}))
		t.Cleanup(front.Close)
		generates.Store(true)
		r, _, _ := prober(t, ProberConfig{Every: 20 * time.Millisecond, Timeout: 200 * time.Millisecond, Failures: 1,
			Latest: func(string) time.Time {
				if generates.Load() {
					return time.Now()
				}
				return time.Time{}
			}}, "both "+front.URL+",id=w1,model=m")
		first := member(t, r, "the worker", func(w *pools.Worker) bool { return w.BlockSize == 32 })
		busy.Store(true)
		before := asked.Load()
		within(t, "asked on", func() bool { return asked.Load() > before+1 })
		assert.Equal(t, first.Incarnation, member(t, r, "the busy worker", anyWorker).Incarnation, "it is another process")
		switch end {
		case "it is not well":
			s.set(func(s *stock) { s.ill = http.StatusServiceUnavailable })
			busy.Store(false)
		case "its port is closed":
			front.Listener.Close()
			front.CloseClientConnections()
		default:
			generates.Store(false)
		}
		within(t, end, func() bool { _, in := r.Lookup("w1"); return !in && len(r.View().Lost()) == 1 })
	}
}

// A worker that cannot be asked for want of descriptors here, or because the
// resolver fails, stays; one whose name is gone leaves.
func TestOwnWantTakesNoWorkerOut(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		stays bool
	}{
		{"descriptors", os.NewSyscallError("socket", syscall.EMFILE), true},
		{"ports", os.NewSyscallError("connect", syscall.EADDRNOTAVAIL), true},
		{"resolver", &net.DNSError{Err: "server misbehaving", Name: "w1", IsTemporary: true}, true},
		{"no such name", &net.DNSError{Err: "no such host", Name: "w1", IsNotFound: true}, false},
		{"refused", os.NewSyscallError("connect", syscall.ECONNREFUSED), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStock(t, vllm("m"))
			var beats, since atomic.Int64 // all, and those that have failed
			var fails atomic.Bool
			cfg := ProberConfig{OnBeat: func(_ string, err error) {
				beats.Add(1)
				if err != nil {
					since.Add(1)
				}
			}, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				if fails.Load() {
					return nil, &net.OpError{Op: "dial", Net: network, Err: c.err}
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}}
			roster, _, _ := prober(t, cfg, "both "+s.URL+",id=w1")
			here := func() bool { m, ok := roster.Lookup("w1"); return ok && m.Eligible(time.Now()) }
			within(t, "the worker is there", here)
			fails.Store(true)
			s.CloseClientConnections()
			if !c.stays {
				within(t, "the worker has left", func() bool { return !here() })
				return
			}
			within(t, "it was asked in vain", func() bool { return since.Load() >= 10 })
			assert.True(t, here(), "the worker was taken out")
			fails.Store(false)
			asked := beats.Load()
			within(t, "it is asked on", func() bool { return beats.Load() > asked+1 })
		})
	}
}

// A worker's address leads to another engine, while the first one keeps its connections and goes on answering: the other
// one is found.
func TestMovedWorkersAreFound(t *testing.T) {
	var g gate
	g.open(newStock(t, vllm("first")).URL)
	r, _, _ := prober(t, ProberConfig{Dial: g.dial}, "both http://w:1,id=w1")
	for _, model := range []string{"first", "second"} {
		member(t, r, model, func(w *pools.Worker) bool { return w.Model == model })
		g.open(newStock(t, vllm("second")).URL)
	}
}

// A worker that comes with an incarnation, as a pod does, has it for its first process; each later one has another that begins with it.
func TestGivenIncarnationsGrow(t *testing.T) {
	p := NewProber(pools.NewRoster(pools.Config{}, quiet).From("pods"), ProberConfig{}, quiet)
	f := p.probe(pools.Worker{ID: "w", Incarnation: "uid-1"}, 0)
	seen := map[string]bool{}
	for range 3 {
		f.incarnation = f.draw()
		assert.True(t, !seen[f.incarnation] && strings.HasPrefix(f.incarnation, "uid-1"), "%q after %v", f.incarnation, seen)
		seen[f.incarnation] = true
	}
	assert.True(t, seen["uid-1"], "the first is another: %v", seen)
}
