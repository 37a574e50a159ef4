package edge

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/loop"
)

// What TLS costs a client: a stream of three events on a connection that is kept, and one on a connection of its own, through
// the edge and through net/http's server.
func BenchmarkTLS(b *testing.B) {
	v := newVouched(b)
	pair, err := tls.LoadX509KeyPair(filepath.Join(v.dir, "gateway.pem"), filepath.Join(v.dir, "gateway.key"))
	if err != nil {
		b.Fatal(err)
	}
	streams := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for part := range strings.SplitAfterSeq(wholeStream, "\n\n") {
			_, _ = io.WriteString(w, part)
			w.(http.Flusher).Flush()
		}
	})
	other := func(ln net.Listener) string {
		s := &http.Server{Handler: streams}
		go func() { _ = s.Serve(ln) }()
		b.Cleanup(func() { _ = s.Close() })
		return ln.Addr().String()
	}
	dial := func(addr string, secure bool) net.Conn {
		c, err := net.Dial("tcp", addr)
		if err == nil && secure {
			c = tls.Client(c, v.client(b, nil))
		}
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	ask := func(c net.Conn, br *bufio.Reader) {
		if _, err := io.WriteString(c, post(streamBody)); err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(wholeStream)) {
			b.Fatal(n, err)
		}
	}
	measure := func(name, addr string, secure bool) {
		b.Run(name+"/kept", func(b *testing.B) {
			c := dial(addr, secure)
			defer c.Close()
			br := bufio.NewReader(c)
			ask(c, br)
			b.ReportAllocs()
			for b.Loop() {
				ask(c, br)
			}
		})
		b.Run(name+"/new", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := dial(addr, secure)
				ask(c, bufio.NewReader(c))
				c.Close()
			}
		})
	}
	set := func(keeps *loop.Loops) option { return func(c *Config) { c.Loops = keeps } }
	measure("edge-loop", serve(b, loopback(b), answerStream, set(loops)).ln.Addr().String(), false)
	measure("edge-goroutine", serve(b, loopback(b), answerStream, set(nil)).ln.Addr().String(), false)
	measure("edge-tls", serve(b, loopback(b), answerStream, v.option).ln.Addr().String(), true)
	measure("nethttp", other(loopback(b)), false)
	measure("nethttp-tls", other(tls.NewListener(loopback(b), &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})), true)
}
