package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errLeft = errors.New("the client left")

func leg(base string) Leg {
	return Leg{Worker: "w1", Base: base, Path: "/v1/completions", RequestID: "abc-1", Rank: -1, Body: Body{[]byte(`{"model":"m"}`)}}
}

func TestCallSendsTheLeg(t *testing.T) {
	var got *http.Request
	var body string
	l := leg(engine(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got, body = r, string(raw)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "tea")
	}))
	l.Rank, l.TraceParent, l.Stream = 3, "00-aa-bb-01", true
	s := called(t, client(t, ClientConfig{}), l)
	assert.Equal(t, http.StatusTeapot, s.Status())
	assert.Equal(t, "application/json", s.ContentType())
	assert.Equal(t, "tea", finish(t, s))
	assert.Equal(t, `{"model":"m"}`, body)
	assert.Equal(t, "/v1/completions", got.URL.Path)
	assert.EqualValues(t, len(body), got.ContentLength)
	for name, want := range map[string]string{
		"X-Request-Id": "abc-1", "X-Data-Parallel-Rank": "3", "Traceparent": "00-aa-bb-01",
		"Accept": "text/event-stream", "Content-Type": "application/json", "Authorization": "", "Accept-Encoding": "",
	} {
		assert.Equal(t, want, got.Header.Get(name), name)
	}
}

func TestCallNamesHowFarItCame(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody.Close()
	refused := "http://" + nobody.Addr().String()
	breaks := func(sends bool) string {
		return engine(t, func(w http.ResponseWriter, _ *http.Request) {
			if sends {
				w.Header().Set("Content-Length", "100")
				_, _ = io.WriteString(w, "short")
				w.(http.Flusher).Flush()
			}
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Close()
		})
	}
	h := client(t, ClientConfig{})
	for base, op := range map[string]Op{refused: OpDial, "redis://host": OpDial, breaks(false): OpHead, breaks(true): OpBody} {
		s, err := h.Call(t.Context(), leg(base))
		if err == nil {
			_, err = io.ReadAll(s)
			s.Close()
		}
		assertFailed(t, err, op)
		assert.Equal(t, base == refused, errors.Is(err, syscall.ECONNREFUSED), "the raw cause of %v", err)
	}
}

// Ending the context, or closing an unfinished answer from beside, frees a read that waits in it and reaches the engine
// as a closed connection: it frees its blocks on that.
func TestLeavingReachesTheWorker(t *testing.T) {
	for name, leave := range map[string]func(cancel context.CancelCauseFunc, s Stream){
		"context": func(cancel context.CancelCauseFunc, _ Stream) { cancel(errLeft) },
		"close":   func(_ context.CancelCauseFunc, s Stream) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			base := engine(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				close(gone)
			})
			h := client(t, ClientConfig{})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			s, err := h.Call(ctx, leg(base))
			require.NoError(t, err)
			reading, failed := make(chan struct{}), make(chan error)
			go func() {
				close(reading)
				_, err := s.Read(make([]byte, 1))
				failed <- err
			}()
			<-reading
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() { leave(cancel, s) })
			}
			assertFailed(t, <-failed, OpBody)
			<-gone
			all.Wait()
			s.Close()
			_, err = s.Read(make([]byte, 1))
			assert.Error(t, err, "read on after leaving")
			assert.Zero(t, h.Stats()[0].Open)
		})
	}
}

// A call with Parting: an engine that still works sees its client gone at once; an answer that was sent already is read
// all the same. A call that had ended before it began ends by its cause, with Parting or without.
func TestParting(t *testing.T) {
	working, gone := make(chan struct{}), make(chan struct{})
	answer := make(chan struct{})
	l, h := leg(engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/answers" {
			_, _ = io.WriteString(w, "it is done")
			close(answer)
			return
		}
		close(working)
		<-r.Context().Done()
		close(gone)
		panic(http.ErrAbortHandler) // as an engine without anything to send
	})), client(t, ClientConfig{})

	l.Parting = time.Minute
	ctx, leave := context.WithCancelCause(context.Background())
	go func() {
		<-working
		leave(errLeft)
	}()
	_, err := h.Call(ctx, l)
	assert.ErrorIs(t, err, errLeft, "an engine that stopped")
	<-gone

	l.Path = "/answers"
	ctx, leave = context.WithCancelCause(context.Background())
	s, err := h.Call(ctx, l)
	require.NoError(t, err)
	<-answer
	leave(errLeft)
	assert.Equal(t, "it is done", finish(t, s), "an answer on its way")

	ended, leave := context.WithCancelCause(context.Background())
	leave(errLeft)
	for _, l.Parting = range []time.Duration{0, time.Millisecond} {
		_, err := h.Call(ended, l)
		assert.ErrorIs(t, err, errLeft)
		assert.NotContains(t, err.Error(), "canceled")
	}
}

// engine is an HTTP server, by its base URL.
func engine(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	return srv.URL
}

// client is a transport that closes its connections at the end of the test.
func client(t *testing.T, cfg ClientConfig) *Client {
	t.Helper()
	h := newHTTP(cfg)
	t.Cleanup(h.CloseIdle)
	return h
}

// called is the answer to a call.
func called(t *testing.T, h Transport, l Leg) Stream {
	t.Helper()
	s, err := h.Call(t.Context(), l)
	require.NoError(t, err)
	return s
}

// finish reads an answer to its end and closes it.
func finish(t *testing.T, s Stream) string {
	t.Helper()
	got, err := io.ReadAll(s)
	assert.NoError(t, err)
	assert.NoError(t, s.Close())
	return string(got)
}

// assertFailed checks how far a call came.
func assertFailed(t *testing.T, err error, op Op) {
	t.Helper()
	var e *Error
	assert.True(t, errors.As(err, &e) && e.Op == op && e.Worker == "w1", "got %v, want an *Error at %s", err, op)
}
