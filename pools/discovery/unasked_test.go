package discovery

import (
	"context"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
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
			var beats, since atomic.Int64 // all, and those that have failed
			var fails atomic.Bool
			roster, _, _ := proberOver(t, ProberConfig{OnBeat: func(_ string, err error) {
				beats.Add(1)
				if err != nil {
					since.Add(1)
				}
			}}, func(ctx context.Context, network, address string) (net.Conn, error) {
				if fails.Load() {
					return nil, &net.OpError{Op: "dial", Net: network, Err: c.err}
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			}, "both "+s.URL+",id=w1")
			here := func() bool { m, ok := roster.Lookup("w1"); return ok && m.Eligible(time.Now()) }
			within(t, "the worker is there", here)
			fails.Store(true)
			if !c.stays {
				within(t, "the worker has left", func() bool { return !here() })
				return
			}
			within(t, "it was asked in vain", func() bool { return since.Load() >= 10 })
			if !here() {
				t.Error("the worker was taken out")
			}
			fails.Store(false)
			asked := beats.Load()
			within(t, "it is asked on", func() bool { return beats.Load() > asked+1 })
		})
	}
}
