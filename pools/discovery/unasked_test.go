package discovery

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

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
			log := slog.New(slog.DiscardHandler)
			roster := pools.NewRoster(pools.Config{}, log)
			var beats, since atomic.Int64 // all, and those that have failed
			p, err := NewProber(roster.From("flags"), ProberConfig{Every: 2 * time.Millisecond, Timeout: 5 * time.Second, OnBeat: func(_ string, err error) {
				beats.Add(1)
				if err != nil {
					since.Add(1)
				}
			}}, log)
			if err != nil {
				t.Fatal(err)
			}
			var fails atomic.Bool
			p.asker.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if fails.Load() {
					return nil, &net.OpError{Op: "dial", Net: network, Err: c.err}
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}}
			p.Set(list(t, "both "+s.URL+",id=w1"))
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { _ = p.Run(ctx) })
			t.Cleanup(func() { cancel(); running.Wait() })
			here := func() bool { m, ok := roster.Lookup("w1"); return ok && m.Eligible(time.Now()) }
			within(t, 10*time.Second, "the worker is there", here)
			fails.Store(true)
			if !c.stays {
				within(t, 10*time.Second, "the worker has left", func() bool { return !here() })
				return
			}
			within(t, 10*time.Second, "it was asked in vain", func() bool { return since.Load() >= 10 })
			if !here() {
				t.Error("the worker was taken out")
			}
			fails.Store(false)
			asked := beats.Load()
			within(t, 10*time.Second, "it is asked on", func() bool { return beats.Load() > asked+1 })
		})
	}
}
