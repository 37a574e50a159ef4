package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// canned is a worker that takes next to no processor time: it answers every
// request on a connection with the same bytes, written in one piece each.
func canned(tb testing.TB, answers ...string) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerEach(c, answers...)
		}
	}()
	return "http://" + l.Addr().String()
}

// answerEach answers every request, which comes in one piece, until the other side leaves.
func answerEach(c net.Conn, answers ...string) {
	defer c.Close()
	for request := make([]byte, 4<<10); ; {
		if _, err := c.Read(request); err != nil {
			return
		}
		for _, a := range answers {
			if _, err := io.WriteString(c, a); err != nil {
				return
			}
		}
	}
}

const (
	prefillAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n{\"kv\":\"params\"}"
	decodeHead    = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
	decodeChunk   = "9\r\ndata: 1\n\n\r\n"
	decodeEnd     = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)

// What a whole call costs, answer included: ours and net/http's client in one
// run, against the same worker. cpu-µs/op is user and system time of the whole
// process, the worker's share included, which is the same for both.
func BenchmarkCall(b *testing.B) {
	one := canned(b, prefillAnswer)
	eight := canned(b, decodeHead+decodeChunk, decodeChunk, decodeChunk, decodeChunk, decodeChunk, decodeChunk, decodeChunk, decodeEnd)
	for _, by := range []struct {
		name string
		make func() Transport
	}{
		{"ours", func() Transport { return newHTTP(Config{}) }},
		{"net-http", func() Transport { return newNetHTTP() }},
	} {
		for _, c := range []struct{ name, base string }{{"prefill", one}, {"decode", eight}} {
			b.Run(c.name+"/"+by.name, func(b *testing.B) {
				t := by.make()
				defer t.(interface{ CloseIdle() }).CloseIdle()
				l := leg(c.base)
				l.Stream, l.Rank, l.Body = true, 0, Body{make([]byte, 600)}
				b.ReportAllocs()
				b.SetParallelism(8)
				before := processorTime(b)
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					buf := make([]byte, 16<<10)
					for pb.Next() {
						// As the rooms do it: a context of the request, one of the leg.
						ctx, cancel := context.WithCancelCause(context.Background())
						if err := drain(ctx, t, l, buf); err != nil {
							b.Error(err)
						}
						cancel(nil)
					}
				})
				b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// drain makes a call and reads the answer.
func drain(ctx context.Context, t Transport, l Leg, buf []byte) error {
	s, err := t.Call(ctx, l)
	if err != nil {
		return err
	}
	defer s.Close()
	if s.Status() != http.StatusOK {
		return errors.New("not a 200")
	}
	for err == nil {
		_, err = s.Read(buf)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func processorTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
