package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// BenchmarkRequest measures what `gateway serve` takes for a request of two
// legs, with its log line and its default settings: a chat of about 64 tokens,
// each with another text, and an answer of eight events in one piece.
//
//	go test -run '^$' -bench '^BenchmarkRequest$' -benchmem -benchtime 20000x ./cmd/gateway
//
// The gateway runs in this process. Engines and clients do too; they are
// lab/testkit's and allocate nothing for a request. CPU times are of the kernel's clock
// tick, and of client, engines and gateway on the same cores: `go run ./bench`
// separates them.
func BenchmarkRequest(b *testing.B) {
	address, prefill := serveWired(b)
	var callers [16]*caller
	for i := range callers {
		callers[i] = newCaller(b, address)
	}
	var next atomic.Int64
	drive := func(n int) {
		last := next.Load() + int64(n)
		var calling sync.WaitGroup
		for _, c := range callers {
			calling.Go(func() {
				for number := next.Add(1); number <= last; number = next.Add(1) {
					if err := c.call(number); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		calling.Wait()
		next.Store(last)
	}
	drive(500) // connections, pools and caches

	var before, after syscall.Rusage
	seen := prefill.Seen()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ReportAllocs()
	b.ResetTimer()
	drive(b.N)
	b.StopTimer()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	require.Equal(b, int64(b.N), prefill.Seen().Less(seen).Prefills, "prefills for %d requests of two legs", b.N)
	b.ReportMetric(float64(after.Utime.Nano()-before.Utime.Nano())/1e3/float64(b.N), "user-µs/req")
	b.ReportMetric(float64(after.Stime.Nano()-before.Stime.Nano())/1e3/float64(b.N), "sys-µs/req")
}

// serveWired runs `gateway serve` in this process before one engine of each pool.
func serveWired(t testing.TB) (address string, prefill *testkit.Instant) {
	var engines [2]*testkit.Instant
	for i := range engines {
		e, err := testkit.NewInstant(0)
		require.NoError(t, err)
		t.Cleanup(func() { e.Close() })
		engines[i] = e
	}
	address, stop := serveInside(t, "--prefill-url", engines[0].Worker("p", testkit.InstantModel), "--decode-url", engines[1].Worker("d", testkit.InstantModel))
	t.Cleanup(stop)
	eventually(t, "the workers are up", func() bool { status, _ := get("http://" + address + "/health"); return status == http.StatusOK })
	return address, engines[0]
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

// caller makes requests over one connection.
type caller struct {
	conn            net.Conn
	answers         *testkit.AnswerReader
	request, number []byte // number is the place in the request of what makes its text another one
}

func newCaller(t testing.TB, address string) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	words, err := replay.NewPrompter(tokens.Sim(), 1)
	require.NoError(t, err)
	number := []byte("10000000")
	text := append(number, words.AppendText(nil, []replay.Span{{ID: 1, Tokens: 60}})...)
	request := testkit.AppendRequest(nil, testkit.ChatPath, address,
		fmt.Appendf(nil, `{"model":"%s","messages":[{"role":"user","content":"%s"}],"stream":true,"max_tokens":8}`, testkit.InstantModel, text))
	return &caller{conn, testkit.NewAnswerReader(conn, 4<<10), request, request[bytes.Index(request, number):][:len(number)]}
}

// call makes one request, whose text begins with the number.
func (c *caller) call(number int64) error {
	c.number = strconv.AppendInt(c.number[:0], 10_000_000+number, 10)
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	events, err := c.answers.Stream(nil)
	if err == nil && events != 8 {
		err = fmt.Errorf("%d events, want 8", events)
	}
	return err
}
