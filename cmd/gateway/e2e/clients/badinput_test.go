package clients

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// reply is one answer as it came over a raw connection.
type reply struct {
	status int
	header http.Header
	body   string
	last   bool // it says that the connection ends with it
}

// exchange sends raw bytes over a connection of its own and reads up to want answers; closed reports whether the
// gateway then ended the connection. It fails the test when neither comes.
func exchange(f *fleet.Fleet, raw []byte, want int) (replies []reply, closed bool) {
	f.T.Helper()
	c, err := fleet.Dial(f.T, strings.TrimPrefix(f.URL, "http://"))
	if err != nil {
		f.T.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var sent sync.WaitGroup
	sent.Go(func() { _, _ = c.Write(raw) }) // it may be refused before its end
	defer sent.Wait()
	in := bufio.NewReader(c)
	for len(replies) < want {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return replies, atEnd(f, err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			f.T.Errorf("half an answer, status %d, then %v", res.StatusCode, err)
		}
		replies = append(replies, reply{res.StatusCode, res.Header, string(body), res.Close})
		if res.Close {
			break
		}
	}
	if len(replies) > 0 && !replies[len(replies)-1].last {
		return replies, false
	}
	_, err = in.ReadByte()
	return replies, atEnd(f, err)
}

// atEnd says whether err is the end of a connection, and not the end of our
// patience.
func atEnd(f *fleet.Fleet, err error) bool {
	f.T.Helper()
	if late, ok := err.(net.Error); ok && late.Timeout() {
		f.T.Errorf("neither an answer nor the connection's end: %v", err)
		return false
	}
	return err != nil
}

// hostile runs a test in virtual time on a small fleet that must survive what it is sent: in the end it answers, holds nothing and has
// lost no goroutine.
func hostile(t *testing.T, test func(t *testing.T, f *fleet.Fleet)) {
	t.Helper()
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
			c.Edge.ReadTimeout, c.Edge.MaxBodyBytes = readTimeout, 1<<20
		}})
		test(t, f)
		f.Healthy()
		f.Idle()
		if logs := f.Logs.String(); strings.Contains(logs, "panic") || strings.Contains(logs, "level=ERROR") {
			t.Error("the gateway's log tells of a failure of its own")
		}
	})
}

const readTimeout = 400 * time.Millisecond

const small = `{"model":"tandem-sim","max_tokens":2,"prompt":"hello there"}`

// smuggled is a request that must never be answered: it hides behind a length
// that two readers would take differently.
const smuggled = "GET /workers HTTP/1.1\r\nHost: gateway\r\n\r\n"

// zipped is a bomb: 64 MiB of spaces in 64 KiB.
func zipped(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	chunk := bytes.Repeat([]byte(" "), 1<<20)
	for range 64 {
		if _, err := z.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestBadRequests sends what no client should. Each gets the status of the
// table, in the one shape of errors, and the connection is closed where the
// gateway cannot know any more where the next request begins; what came behind
// is never taken for one.
func TestBadRequests(t *testing.T) { hostile(t, badRequests) }

func badRequests(t *testing.T, f *fleet.Fleet) {
	length := "Content-Length: " + strconv.Itoa(len(small))
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(small), small)
	raw := func(head string) []byte { return []byte(head + smuggled) }
	for _, c := range []struct {
		name string
		raw  []byte
		want int // 0: closed without an answer
	}{
		{"nothing wrong", fleet.Sized(small), 200},
		{"nothing wrong, in chunks", fleet.Request(chunks, "Transfer-Encoding: chunked", "Connection: close"), 200},

		{"ten thousand headers", fleet.Sized(small, strings.Split(strings.Repeat("x-a: b\n", 9999)+"x-a: b", "\n")...), 431},
		{"a thousand headers", fleet.Sized(small, strings.Split(strings.Repeat("x-a: b\n", 999)+"x-a: b", "\n")...), 200},
		{"a header line of a megabyte", fleet.Sized(small, "x-a: "+strings.Repeat("b", 1<<20)), 431},
		{"a header name of a megabyte", fleet.Sized(small, strings.Repeat("b", 1<<20)+": a"), 431},
		{"a target of a megabyte", raw("GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: g\r\n\r\n"), 431},
		{"a method of a megabyte", raw(strings.Repeat("A", 1<<20) + " / HTTP/1.1\r\nHost: g\r\n\r\n"), 431},
		{"an unknown method", raw("FROB /v1/models HTTP/1.1\r\nHost: g\r\n\r\n"), 501},
		{"HTTP/2 by prior knowledge", raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 501},
		{"TLS", []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00\xff", 300) + "\r\n\r\n"), 400},
		{"no HTTP at all", []byte("hello, is anybody there?\r\n\r\n" + smuggled), 400},
		{"HTTP/0.9", raw("GET /health\r\n\r\n"), 400},
		{"another protocol", raw("GET /health RTSP/1.0\r\nHost: g\r\n\r\n"), 400},
		{"no request line", raw(" \r\nHost: g\r\n\r\n"), 400},
		{"a blank in the target", raw("GET /hea lth HTTP/1.1\r\nHost: g\r\n\r\n"), 400},

		{"two lengths that differ", fleet.Request(small+smuggled, length, "Content-Length: 5"), 400},
		{"two lengths that are equal", fleet.Request(small+smuggled, length, length), 400},
		{"a list of lengths", fleet.Request(small+smuggled, length+", "+strconv.Itoa(len(small))), 400},
		{"a length and chunks", fleet.Request(chunks+smuggled, length, "Transfer-Encoding: chunked"), 400},
		{"chunks and a length", fleet.Request(chunks+smuggled, "Transfer-Encoding: chunked", length), 400},
		{"a negative length", fleet.Request(small+smuggled, "Content-Length: -1"), 400},
		{"a signed length", fleet.Request(small+smuggled, "Content-Length: +5"), 400},
		{"a length in hexadecimal", fleet.Request(small+smuggled, "Content-Length: 0x10"), 400},
		{"a length beyond 64 bits", fleet.Request(small+smuggled, "Content-Length: 99999999999999999999999"), 400},
		{"a length beyond the limit", fleet.Request(small, "Content-Length: 4294967295"), 413},
		{"an empty length", fleet.Request(small+smuggled, "Content-Length:"), 400},
		{"a length with a tab inside", fleet.Request(small+smuggled, "Content-Length: 5\t8"), 400},
		{"a blank before the colon", fleet.Request(small+smuggled, "Content-Length : "+strconv.Itoa(len(small))), 400},
		{"a folded line", fleet.Request(small+smuggled, length, "x-a: b\r\n folded"), 400},
		{"a folded length", fleet.Request(small+smuggled, "Content-Length:\r\n "+strconv.Itoa(len(small))), 400},
		{"a line that is no field", fleet.Request(small+smuggled, length, "nonsense"), 400},
		{"a field without a name", fleet.Request(small+smuggled, length, ": nameless"), 400},
		{"NUL in a field", fleet.Request(small+smuggled, length, "x-a: b\x00c"), 400},
		{"NUL in a name", fleet.Request(small+smuggled, length, "x-\x00a: b"), 400},
		{"a bare CR in a field", fleet.Request(small+smuggled, length, "x-a: b\rx-c: d"), 400},

		{"an unknown transfer coding", fleet.Request(chunks+smuggled, "Transfer-Encoding: gzip, chunked"), 400},
		{"chunked that is not last", fleet.Request(chunks+smuggled, "Transfer-Encoding: chunked, identity"), 400},
		{"chunked in disguise", fleet.Request(chunks+smuggled, "Transfer-Encoding: xchunked"), 400},
		{"chunked twice", fleet.Request(chunks+smuggled, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"), 400},
		{"a chunk beyond 64 bits", fleet.Request("ffffffffffffffffff\r\n"+small, "Transfer-Encoding: chunked"), 400},
		{"a chunk near 64 bits", fleet.Request("7fffffffffffffff\r\n"+small, "Transfer-Encoding: chunked"), 400},
		{"a negative chunk", fleet.Request("-5\r\n"+small, "Transfer-Encoding: chunked"), 400},
		{"a chunk beyond the limit", fleet.Request("200001\r\n"+strings.Repeat(" ", 0x200001)+"\r\n", "Transfer-Encoding: chunked"), 413},
		{"chunks beyond the limit", fleet.Request(strings.Repeat("10000\r\n"+strings.Repeat(" ", 1<<16)+"\r\n", 20), "Transfer-Encoding: chunked"), 413},
		{"a chunk longer than its size", fleet.Request("5\r\n"+small+"\r\n0\r\n\r\n"+smuggled, "Transfer-Encoding: chunked"), 400},
		{"a body beyond the limit", fleet.Sized(strings.Repeat(" ", 1<<20+1)), 413},

		{"a gzip bomb", fleet.Sized(zipped(t), "Content-Encoding: gzip"), 415},
		{"deflate", fleet.Sized(small, "Content-Encoding: deflate"), 415},
		{"br", fleet.Sized(small, "Content-Encoding: br"), 415},
		{"zstd behind identity", fleet.Sized(small, "Content-Encoding: identity, zstd"), 415},
		{"two codings", fleet.Sized(small, "Content-Encoding: identity", "Content-Encoding: gzip"), 415},
		{"identity", fleet.Sized(small, "Content-Encoding: identity"), 200},
		{"gzip unannounced", fleet.Sized(zipped(t)), 400},
		{"another type", fleet.Sized(small, "Content-Type: text/xml"), 415},
		{"a form in parts", fleet.Sized(small, "Content-Type: multipart/form-data; boundary=x"), 415},
		{"an expectation that cannot be met is passed over", fleet.Sized(small, "Expect: a-miracle"), 200},
	} {
		fleet.Within(t, c.name, func(t *testing.T) {
			replies, closed := exchange(f, c.raw, 2)
			switch {
			case c.want == 0 && len(replies) == 0 && closed:
			case len(replies) != 1:
				t.Errorf("%d answers, %+v, want one of status %d", len(replies), replies, c.want)
			case replies[0].status != c.want:
				t.Errorf("status %d, want %d: %s", replies[0].status, c.want, replies[0].body)
			case !closed:
				t.Error("the connection stays open")
			}
			for _, r := range replies {
				if r.status < 400 {
					continue
				}
				if e := f.Parse([]byte(r.body)).Error; e == nil || e.Type == "" || e.Message == "" || e.RequestID != r.header.Get("X-Request-Id") {
					t.Errorf("no typed error: %s", r.body)
				}
			}
		})
	}
}

// Bodies and heads that come drop by drop, or never whole, get 408 at the read
// timeout, and nothing of them stays.
func TestDripFed(t *testing.T) {
	hostile(t, func(t *testing.T, f *fleet.Fleet) {
		for name, c := range map[string]struct {
			at   string // sent at once
			drip string // sent a byte every few milliseconds, over and over
		}{
			"a head":                 {"POST /v1/completions HTTP/1.1\r\n", "x-a: b\r\n"},
			"a body":                 {string(fleet.Request("", "Content-Length: 100000")), " "},
			"a chunked body":         {string(fleet.Request("", "Transfer-Encoding: chunked")), "1\r\n \r\n"},
			"a chunk that stops":     {string(fleet.Request("ff\r\n{", "Transfer-Encoding: chunked")), ""},
			"a request line, barely": {"PO", ""},
		} {
			began := time.Now()
			conn, err := fleet.Dial(t, strings.TrimPrefix(f.URL, "http://"))
			require.NoError(t, err)
			_, err = io.WriteString(conn, c.at)
			require.NoError(t, err)
			var dripped sync.WaitGroup
			dripped.Go(func() {
				for i := 0; c.drip != "" && err == nil; i++ {
					<-time.After(5 * time.Millisecond)
					_, err = conn.Write([]byte{c.drip[i%len(c.drip)]})
				}
			})
			res, failed := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, failed, name)
			took := time.Since(began).Round(time.Millisecond)
			body, _ := io.ReadAll(res.Body)
			conn.Close()
			dripped.Wait()
			if res.StatusCode != http.StatusRequestTimeout || !bytes.Contains(body, []byte(`"code":"request_timeout"`)) || took != readTimeout {
				t.Errorf("%s: status %d after %v: %s", name, res.StatusCode, took, body)
			}
		}
	})
}

// Bombs and large bodies, many at once, cost what they weigh and no multiple of
// it.
func TestBombsCostLittle(t *testing.T) {
	hostile(t, func(t *testing.T, f *fleet.Fleet) {
		bomb := fleet.Sized(zipped(t), "Content-Encoding: gzip")
		const bombs = 50 // 3.2 GiB if anyone inflated them
		spent := allocated(func() {
			for range bombs {
				if replies, _ := exchange(f, bomb, 1); len(replies) != 1 || replies[0].status != http.StatusUnsupportedMediaType {
					t.Fatalf("%+v", replies)
				}
			}
		})
		if spent > bombs*4<<20 {
			t.Errorf("%d bytes allocated for %d bombs of %d", spent, bombs, len(bomb))
		}
	})
}

// allocated is how many bytes the process allocates meanwhile.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
