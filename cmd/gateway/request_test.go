package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/wire"
)

// BenchmarkRequest measures what `gateway serve` allocates for a request of two
// legs, with its log line and its default settings: a chat of about 64 tokens,
// each with another text, and an answer of eight events in one piece.
//
//	go test -run '^$' -bench '^BenchmarkRequest$' -benchmem -benchtime 20000x ./cmd/gateway
//
// The gateway runs in this process. Engines and clients do too; they are
// lab/wire's and allocate next to nothing, as rig-allocs/req shows: it is what
// they take when they speak to each other without the gateway. The figures named gateway
// are the difference. CPU times are of the kernel's clock tick, and of client,
// engines and gateway on the same cores: `go run ./bench` separates them.
func BenchmarkRequest(b *testing.B) {
	var engines [2]*wire.Engine
	for i := range engines {
		e, err := wire.NewEngine(0)
		require.NoError(b, err)
		defer e.Close()
		engines[i] = e
	}
	prefill, decode := engines[0], engines[1]
	address, stop := serveInside(b, "--prefill-url", prefill.Worker("p", wire.Model), "--decode-url", decode.Worker("d", wire.Model))
	defer stop()
	for serving := false; !serving; { // probes of the workers come first
		c := newCaller(b, address, "")
		serving = c.call(0) == nil
		c.close()
	}
	through, direct := newCrowd(b, address, ""), newCrowd(b, prefill.Address(), decode.Address())
	defer through.close()
	defer direct.close()
	through.drive(b, 500) // connections, pools and caches
	direct.drive(b, 500)

	seen := prefill.Seen()
	b.ReportAllocs()
	b.ResetTimer()
	with := through.drive(b, b.N)
	b.StopTimer()
	require.Equal(b, int64(b.N), prefill.Seen().Less(seen).Prefills, "prefills for %d requests of two legs", b.N)
	without := direct.drive(b, b.N)
	each := func(name string, x float64) { b.ReportMetric(x/float64(b.N), name) }
	each("gateway-allocs/req", with.allocs-without.allocs)
	each("gateway-B/req", with.bytes-without.bytes)
	each("gateway-user-µs/req", with.user-without.user)
	each("gateway-sys-µs/req", with.system-without.system)
	each("rig-allocs/req", without.allocs)
	each("rig-user-µs/req", without.user)
}

// serveInside runs `gateway serve` in this process and returns its address.
func serveInside(t testing.TB, flags ...string) (address string, stop func()) {
	t.Helper()
	out, in := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		err := serve(ctx, append(serveArgs()[1:], flags...), process{program: "gateway", stdout: in, stderr: io.Discard})
		_ = in.CloseWithError(errors.Join(err, io.EOF))
		over <- err
	}()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "listening http://"); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return url, func() {
				cancel()
				assert.NoError(t, <-over)
			}
		}
	}
	cancel()
	t.Fatal(<-over)
	return "", nil
}

// digits is how many of a prompt's first characters are its own number's.
const digits = 8

// caller makes requests over one connection, or, in the rig without a gateway,
// over one to each engine.
type caller struct {
	front, back       net.Conn
	fromFront         *wire.Reader
	fromBack          *wire.Reader
	request, asked    []byte // asked is the decode leg's body without its last brace
	atRequest, inBody int    // where the number stands
	decode            []byte
}

func newCaller(b *testing.B, front, back string) *caller {
	b.Helper()
	dial := func(address string) (net.Conn, *wire.Reader) {
		c, err := net.Dial("tcp", address)
		require.NoError(b, err)
		return c, wire.NewReader(c, 4<<10)
	}
	words, err := replay.NewPrompter(tokens.Sim(), 1)
	require.NoError(b, err)
	number := bytes.Repeat([]byte("0"), digits)
	text := append(number, words.AppendText(nil, []replay.Span{{ID: 1, Tokens: 60}})...)
	body := fmt.Appendf(nil, `{"model":"%s","messages":[{"role":"user","content":"%s"}]`, wire.Model, text)
	rest := []byte(`,"stream":true,"max_tokens":8`)
	c := &caller{}
	c.front, c.fromFront = dial(front)
	if c.request = wire.AppendRequest(nil, wire.ChatPath, front, body, rest, []byte("}")); back != "" {
		c.back, c.fromBack = dial(back)
		c.request = wire.AppendRequest(nil, wire.ChatPath, front, body, []byte(wire.PrefillFields))
		c.asked = append(body, rest...)
	}
	c.atRequest, c.inBody = bytes.Index(c.request, number), bytes.Index(c.asked, number)
	return c
}

// call makes one request, whose text begins with the number.
func (c *caller) call(number int64) error {
	stamp(c.request[c.atRequest:], number)
	if _, err := c.front.Write(c.request); err != nil {
		return err
	}
	from := c.fromFront
	if c.back != nil {
		_, answer, err := from.Whole()
		if err != nil {
			return err
		}
		params, ok := wire.KVParams(answer)
		if !ok {
			return errors.New("prefill answers without a hand-off")
		}
		stamp(c.asked[c.inBody:], number)
		c.decode = wire.AppendDecode(c.decode[:0], c.asked, params)
		if _, err := c.back.Write(c.decode); err != nil {
			return err
		}
		from = c.fromBack
	}
	events, err := from.Stream(nil)
	if err == nil && events != 8 {
		err = fmt.Errorf("%d events, want 8", events)
	}
	return err
}

// stamp writes the number in its place.
func stamp(b []byte, number int64) {
	for i := digits - 1; i >= 0; i-- {
		b[i] = byte('0' + number%10)
		number /= 10
	}
}

func (c *caller) close() {
	_ = c.front.Close()
	if c.back != nil {
		_ = c.back.Close()
	}
}

// crowd is sixteen callers that call at once.
type crowd struct {
	callers [16]*caller
	next    atomic.Int64
}

func newCrowd(b *testing.B, front, back string) *crowd {
	var cr crowd
	for i := range cr.callers {
		cr.callers[i] = newCaller(b, front, back)
	}
	return &cr
}

func (cr *crowd) close() {
	for _, c := range cr.callers {
		c.close()
	}
}

// spent is what the process took: allocations, their bytes, and microseconds of
// its CPU time.
type spent struct{ allocs, bytes, user, system float64 }

func readSpent() spent {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return spent{float64(m.Mallocs), float64(m.TotalAlloc), float64(u.Utime.Nano()) / 1e3, float64(u.Stime.Nano()) / 1e3}
}

// drive makes n requests and returns what they took.
func (cr *crowd) drive(b *testing.B, n int) spent {
	was := readSpent()
	last := cr.next.Load() + int64(n)
	var calling sync.WaitGroup
	for _, c := range cr.callers {
		calling.Go(func() {
			for {
				number := cr.next.Add(1)
				if number > last {
					return
				}
				if err := c.call(number); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	calling.Wait()
	cr.next.Store(last)
	is := readSpent()
	return spent{is.allocs - was.allocs, is.bytes - was.bytes, is.user - was.user, is.system - was.system}
}
