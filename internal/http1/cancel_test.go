package http1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Calls that end late, early or not at all share few connections: one call's
// end is never another's failure, and every answer is the one to its request.
func TestLateEndsAffectNoOtherCall(t *testing.T) {
	base := engine(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		for i := range len(raw) {
			_, _ = w.Write(raw[i : i+1])
			w.(http.Flusher).Flush()
		}
	})
	h := client(t, ClientConfig{IdlePerWorker: 4})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var whole, left atomic.Int64
	var group sync.WaitGroup
	for g := range 24 {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			for i := range 120 {
				ctx, cancel := context.WithCancelCause(context.Background())
				ends := rng.IntN(3) // 0: never in time; 1: right after the answer; 2: anywhere
				var ender sync.WaitGroup
				if ends == 2 {
					yields := rng.IntN(400)
					ender.Go(func() {
						for range yields {
							runtime.Gosched()
						}
						cancel(errLeft)
					})
				}
				l := leg(base)
				l.Body = Body{fmt.Appendf(nil, "%d/%d", g, i)}
				if rng.IntN(2) == 0 {
					l.Parting = time.Second
				}
				s, err := h.Call(ctx, l)
				var got []byte
				if err == nil {
					got, err = io.ReadAll(s)
					if ends == 1 { // the end and the giving back, at once
						ender.Go(func() { cancel(errLeft) })
					}
					s.Close()
				}
				switch {
				case err == nil && bytes.Equal(got, l.Body.AppendTo(nil)):
					whole.Add(1)
				case err != nil && ends == 2 && errors.Is(err, errLeft):
					left.Add(1)
				default:
					t.Errorf("call %s that ends %d: %q, %v", l.Body, ends, got, err)
				}
				ender.Wait()
				cancel(nil)
			}
		})
	}
	group.Wait()
	assert.True(t, whole.Load() != 0 && left.Load() != 0, "%d whole, %d left: nothing was tried", whole.Load(), left.Load())
	st := h.Stats()[0]
	assert.True(t, st.Open == st.Idle && st.Idle <= 4, "%+v", st)
}

// The end of a context reaches every stage of a call at once.
func TestEndReachesEveryStage(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close() // takes connections into its backlog and never reads
	type dialer = func(ctx context.Context, network, address string) (net.Conn, error)
	for _, c := range []struct {
		name, base string
		body       int
		op         Op
		dial       dialer
	}{
		{"dial", "http://w", 1, OpDial, func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		{"handshake", "https://" + silent.Addr().String(), 1, OpDial, new(net.Dialer).DialContext},
		{"write", "http://w", 1, OpHead, func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe() // whose other side reads nothing
			t.Cleanup(func() { theirs.Close() })
			return ours, nil
		}},
		{"long write", "http://" + silent.Addr().String(), 64 << 20, OpHead, new(net.Dialer).DialContext},
		{"head", "http://" + silent.Addr().String(), 1, OpHead, new(net.Dialer).DialContext},
	} {
		for _, parting := range []time.Duration{0, time.Millisecond} {
			t.Run(fmt.Sprintf("%s, parting %v", c.name, parting), func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				leave := func() { time.AfterFunc(20*time.Millisecond, func() { cancel(errLeft) }) }
				dial := c.dial
				if c.op == OpDial {
					leave()
				} else { // once the connection is there, however long that took
					dial = func(ctx context.Context, network, address string) (net.Conn, error) {
						defer leave()
						return c.dial(ctx, network, address)
					}
				}
				h := client(t, ClientConfig{Dial: dial, DialTimeout: time.Minute})
				l := leg(c.base)
				l.Body, l.Parting = Body{make([]byte, c.body)}, parting
				began := time.Now()
				_, err := h.Call(ctx, l)
				assertFailed(t, err, c.op)
				assert.ErrorIs(t, err, errLeft)
				assert.Less(t, time.Since(began), 30*time.Second)
				assert.Zero(t, h.Stats()[0].Open)
			})
		}
	}
}

// A worker that refuses a request before it has read it is noticed, and the rest of the request is not waited for.
func TestEarlyAnswer(t *testing.T) {
	for _, closes := range []bool{true, false} {
		t.Run(fmt.Sprintf("closes %t", closes), func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			done := make(chan struct{})
			var worker sync.WaitGroup
			worker.Go(func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_, _ = c.Read(make([]byte, 100))
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
				if !closes {
					<-done
				}
			})
			h, call := client(t, ClientConfig{}), leg("http://"+l.Addr().String())
			call.Body = Body{make([]byte, 64<<20)} // more than any kernel buffers
			s := called(t, h, call)
			assert.Equal(t, 413, s.Status())
			assert.Equal(t, "big", finish(t, s))
			assert.Zero(t, h.Stats()[0].Open, "it is kept")
			close(done)
			worker.Wait()
		})
	}
}

// With Parting a TLS engine sees its client gone as well, while its answer is still read.
func TestPartingOverTLS(t *testing.T) {
	gone := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "it is ")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
		_, _ = io.WriteString(w, "done")
	}))
	srv.Config.ErrorLog = quietLog
	srv.StartTLS()
	defer srv.Close()
	h := client(t, ClientConfig{Trust: system{srv.Client().Transport.(*http.Transport).TLSClientConfig}})
	ctx, leave := context.WithCancelCause(t.Context())
	l := leg(srv.URL)
	l.Parting = time.Minute
	s, err := h.Call(ctx, l)
	require.NoError(t, err)
	leave(errLeft)
	<-gone
	assert.Equal(t, "it is done", finish(t, s))
	assert.Zero(t, h.Stats()[0].Open, "a connection that was parted from is kept")
}

// Reads give what is there and do not wait for more.
func TestReadsDoNotWait(t *testing.T) {
	events, next := []string{"data: 1\n\n", "data: 2\n\ndata: 3\n\n"}, make(chan struct{})
	s := called(t, client(t, ClientConfig{}), leg(engine(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, event := range events {
			_, _ = io.WriteString(w, event)
			w.(http.Flusher).Flush()
			<-next
		}
	})))
	buf := make([]byte, 1<<10)
	for _, want := range events {
		n, err := s.Read(buf)
		assert.NoError(t, err)
		assert.Equal(t, want, string(buf[:n]))
		next <- struct{}{}
	}
	finish(t, s)
}
