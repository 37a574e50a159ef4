package operations

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/linktest"
	"github.com/tandem-pd/tandem/pools"
)

// newNames makes this process ask a name server of the test, to which every name has the address that it returns.
func newNames(t *testing.T) *atomic.Pointer[netip.Addr] {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, ended := new(atomic.Pointer[netip.Addr]), make(chan struct{})
	go func() {
		defer close(ended)
		for query := make([]byte, 512); ; {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			end := 12
			for end < n && query[end] != 0 { // the labels of the name
				end += 1 + int(query[end])
			}
			if end += 5; end > n {
				continue
			}
			answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
			if binary.BigEndian.Uint16(query[end-4:]) == 1 { // an A record of the name above, for no time at all
				answer[7] = 1
				answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				answer = append(answer, at.Load().AsSlice()...)
			}
			_, _ = server.WriteTo(answer, from)
		}
	}()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		_ = server.Close()
		<-ended
	})
	return at
}

// A worker whose name moves to another address is called there, whether its old address refuses or is
// silent; no answer fails meanwhile.
func TestNamesMove(t *testing.T) {
	for name, state := range map[string]linktest.State{
		"refuses": {Refuse: true}, "is silent": {Up: linktest.Way{Hole: true}, Down: linktest.Way{Hole: true}},
	} {
		t.Run("the old address "+name, func(t *testing.T) {
			names := newNames(t)
			old, next := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
			names.Store(&old)
			p, d, behind := fleet.FreePort(t), fleet.FreePort(t), fleet.FreePort(t)
			link, err := linktest.New(fmt.Sprintf("127.0.0.1:%d", behind))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(link.Close)
			port := netip.MustParseAddrPort(link.Addr()).Port()
			cfg := fleet.GatewayConfig()
			cfg.Decode.FirstTokenTimeout, cfg.Breakers.OpenFor = 300*time.Millisecond, 300*time.Millisecond
			cfg.Workers.Static = append(cfg.Workers.Static,
				fleet.Endpoint(t, pools.Prefill, fmt.Sprintf("http://127.0.0.1:%d,id=prefill-1", p)),
				fleet.Endpoint(t, pools.Decode, fmt.Sprintf("http://127.0.0.1:%d,id=decode-1", d)),
				fleet.Endpoint(t, pools.Decode, fmt.Sprintf("http://engine.test:%d,id=moved", port)))
			cfg.Workers.MinInitial = 3
			f := fleet.NewStatic(t, cfg)
			f.Serve(pools.Prefill, "prefill-1", p)
			f.Serve(pools.Decode, "decode-1", d)
			f.Serve(pools.Decode, "moved", behind)
			f.Healthy()
			n := 0
			by := func() string {
				t.Helper()
				n++
				prompt := fmt.Sprint(n, fleet.Long)
				a := f.Post(fleet.CompletionPath, fleet.Ask(prompt, 6))
				if a.Status != http.StatusOK || f.Text(a) != fleet.Answered(prompt, 6) {
					t.Fatalf("request %d: status %d, %s %q", n, a.Status, a.Body, a.Events)
				}
				_, d := f.Served(a)
				return d
			}
			f.Eventually("it serves", func() bool { return by() == "moved" })
			gone := f.Workers["moved"]
			names.Store(&next)
			w, err := fleet.NewWorker(t, devfleet.WorkerConfig{
				Engine: engine.Config{Role: "decode", ID: "moved", Speedup: 20, BlockSize: 32, TotalKVBlocks: 10_000},
				Host:   next.String(), Port: int(port), ModelInput: "text", Drain: time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			f.Run("moved", w)
			link.Set(state)
			if state.Refuse {
				link.Cut()
			}
			f.Eventually("it serves at its new address", func() bool { return by() == "moved" })
			gone.Kill()
			f.Idle()
		})
	}
}
