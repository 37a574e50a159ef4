package http1

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// Servers of other making: each answers a sized and a streamed call, in turn, on one connection.
func TestRealServers(t *testing.T) {
	const piece = "data: {\"token\": 1}\n\n"
	long := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	std := engine(t, func(w http.ResponseWriter, r *http.Request) {
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
	})
	fast, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
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
		assert.NoError(t, server.Shutdown())
		<-served
	}()
	for name, base := range map[string]string{"net/http": std, "fasthttp": "http://" + fast.Addr().String()} {
		h := newHTTP(ClientConfig{})
		for i := range 10 {
			l := leg(base)
			l.Body = Body{long[:len(long)/20], long[len(long)/20 : (i+1)*len(long)/10]}
			assert.True(t, finish(t, called(t, h, l)) == string(l.Body.AppendTo(nil)), name)
			l.Stream, l.Body = true, Body{[]byte("{}")}
			s := called(t, h, l)
			assert.Equal(t, "text/event-stream", s.ContentType(), name)
			assert.Equal(t, strings.Repeat(piece, 100), finish(t, s), name)
		}
		assert.Equal(t, Stats{Base: base, Open: 1, Idle: 1, Dialed: 1, Reused: 19}, h.Stats()[0])
		h.CloseIdle()
	}
}
