package upstream

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/valyala/fasthttp"
)

// Servers of other making: each answers a sized and a streamed call, in turn,
// on one connection.
func TestRealServers(t *testing.T) {
	const piece = "data: {\"token\": 1}\n\n"
	long := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	std := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		if r.Header.Get("Accept") == "" {
			_, _ = w.Write(raw)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "Took")
		for range 100 {
			_, _ = io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Took", "1 s")
	}))
	defer std.Close()
	fast, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &fasthttp.Server{Handler: func(ctx *fasthttp.RequestCtx) {
		if len(ctx.Request.Header.Peek("Accept")) == 0 {
			ctx.SetBody(ctx.Request.Body())
			return
		}
		ctx.SetContentType("text/event-stream")
		ctx.SetBodyStream(bytes.NewReader(bytes.Repeat([]byte(piece), 100)), -1)
	}}
	served := make(chan error)
	go func() { served <- server.Serve(fast) }()
	defer func() {
		if err := server.Shutdown(); err != nil {
			t.Error(err)
		}
		<-served
	}()
	for name, base := range map[string]string{"net/http": std.URL, "fasthttp": "http://" + fast.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			h := newHTTP(Config{})
			defer h.CloseIdle()
			for i := range 10 {
				l := leg(base)
				l.Body = Body{long[:len(long)/20], long[len(long)/20 : (i+1)*len(long)/10]}
				s, err := h.Call(t.Context(), l)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, l.Body.AppendTo(nil)) {
					t.Errorf("%d bytes of %d, %v", len(got), l.Body.Len(), err)
				}
				s.Close()
				l.Stream, l.Body = true, Body{[]byte("{}")}
				s, err = h.Call(t.Context(), l)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(s); err != nil || string(got) != string(bytes.Repeat([]byte(piece), 100)) || s.ContentType() != "text/event-stream" {
					t.Errorf("%d bytes of type %q, %v", len(got), s.ContentType(), err)
				}
				s.Close()
			}
			if st := h.Stats()[0]; st.Dialed != 1 || st.Reused != 19 {
				t.Errorf("%+v", st)
			}
			h.CloseIdle()
		})
	}
}
