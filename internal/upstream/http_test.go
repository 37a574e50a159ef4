package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

var errLeft = errors.New("the client left")

func leg(base string) Leg {
	return Leg{Worker: "w1", Base: base, Path: "/v1/completions", RequestID: "abc-1", Rank: -1, Body: Body{[]byte(`{"model":"m"}`)}}
}

func TestCallSendsTheLeg(t *testing.T) {
	var got *http.Request
	var body string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		got, body = r, string(raw)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "tea")
	}))
	defer srv.Close()
	l := leg(srv.URL)
	l.Rank, l.TraceParent, l.Stream = 3, "00-aa-bb-01", true
	h := newHTTP(Config{})
	defer h.CloseIdle()
	s, err := h.Call(context.Background(), l)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(s)
	if err != nil || string(answer) != "tea" || s.Status() != http.StatusTeapot || s.ContentType() != "application/json" {
		t.Errorf("answer %q, status %d, type %q, error %v", answer, s.Status(), s.ContentType(), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if body != `{"model":"m"}` || got.URL.Path != "/v1/completions" || got.ContentLength != int64(len(body)) {
		t.Errorf("sent %s %s (%d bytes)", got.URL.Path, body, got.ContentLength)
	}
	for name, want := range map[string]string{
		"X-Request-Id": "abc-1", "X-Data-Parallel-Rank": "3", "Traceparent": "00-aa-bb-01",
		"Accept": "text/event-stream", "Content-Type": "application/json", "Authorization": "", "Accept-Encoding": "",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s: %q, want %q", name, v, want)
		}
	}
}

func TestCallNamesHowFarItCame(t *testing.T) {
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	died := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.Close()
	}))
	defer died.Close()
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "short")
		w.(http.Flusher).Flush()
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.Close()
	}))
	defer cut.Close()
	h := newHTTP(Config{})
	defer h.CloseIdle()
	for _, c := range []struct {
		name, base string
		op         Op
	}{
		{"nothing listens", "http://" + refused.Addr().String(), OpDial},
		{"not an address", "redis://host", OpDial},
		{"died before the head", died.URL, OpHead},
		{"died in the body", cut.URL, OpBody},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := h.Call(context.Background(), leg(c.base))
			if err == nil {
				_, err = io.ReadAll(s)
				s.Close()
			}
			var e *Error
			if !errors.As(err, &e) || e.Op != c.op || e.Worker != "w1" {
				t.Errorf("got %v, want an *Error at %s", err, c.op)
			}
		})
	}
	if _, err := h.Call(context.Background(), leg("http://"+refused.Addr().String())); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the raw cause is lost: %v", err)
	}
}

// Ending the context, or closing an unfinished answer, must reach the engine
// as a closed connection: it frees its blocks on that.
func TestLeavingReachesTheWorker(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(cancel context.CancelCauseFunc, s Stream)
	}{
		{"context", func(cancel context.CancelCauseFunc, _ Stream) { cancel(errLeft) }},
		{"close", func(_ context.CancelCauseFunc, s Stream) { s.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			gone := make(chan time.Time, 1)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				gone <- time.Now()
			}))
			defer srv.Close()
			h := newHTTP(Config{})
			defer h.CloseIdle()
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			s, err := h.Call(ctx, leg(srv.URL))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			left := time.Now()
			c.leave(cancel, s)
			select {
			case at := <-gone:
				if d := at.Sub(left); d > time.Second {
					t.Errorf("the worker noticed after %v", d)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the worker never noticed")
			}
			if _, err := s.Read(make([]byte, 1)); err == nil {
				t.Error("read on after leaving")
			}
		})
	}
}

func TestCauseOfTheEndIsKept(t *testing.T) {
	block := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer srv.Close()
	defer close(block)
	h := newHTTP(Config{})
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errLeft)
	if _, err := h.Call(ctx, leg(srv.URL)); !errors.Is(err, errLeft) || strings.Contains(err.Error(), "canceled") {
		t.Errorf("got %v, want the cause", err)
	}
}

// A call with Parting: an engine that still works sees its client gone at once;
// an answer that was sent already is read all the same.
func TestParting(t *testing.T) {
	working, gone := make(chan struct{}), make(chan struct{})
	answer := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/answers" {
			_, _ = io.WriteString(w, "it is done")
			close(answer)
			return
		}
		close(working)
		<-r.Context().Done()
		close(gone)
		panic(http.ErrAbortHandler) // as an engine that has nothing to say any more
	}))
	defer srv.Close()
	h := newHTTP(Config{})
	defer h.CloseIdle()

	l := leg(srv.URL)
	l.Parting = time.Minute
	ctx, leave := context.WithCancelCause(context.Background())
	go func() {
		<-working
		leave(errLeft)
	}()
	if _, err := h.Call(ctx, l); !errors.Is(err, errLeft) {
		t.Errorf("an engine that stopped: %v", err)
	}
	<-gone

	l.Path = "/answers"
	ctx, leave = context.WithCancelCause(context.Background())
	s, err := h.Call(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	<-answer
	leave(errLeft)
	if got, err := io.ReadAll(s); err != nil || string(got) != "it is done" {
		t.Errorf("an answer on its way: %q, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	l.Path, l.Parting = "/v1/completions", time.Millisecond
	ended, leave := context.WithCancelCause(context.Background())
	leave(errLeft)
	if _, err := h.Call(ended, l); !errors.Is(err, errLeft) {
		t.Errorf("a call that had ended before it began: %v", err)
	}
}
