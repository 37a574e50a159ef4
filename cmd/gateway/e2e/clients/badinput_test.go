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

// exchange sends raw bytes over a connection of its own, closes its sending
// side where half is set, and reads up to want answers; closed says that the
// gateway then ended the connection. It fails the test when neither comes.
func exchange(f *fleet.Fleet, raw []byte, half bool, want int) (replies []reply, closed bool) {
	f.T.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
	if err != nil {
		f.T.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var sent sync.WaitGroup
	sent.Go(func() {
		_, err := c.Write(raw) // it may be refused before its end
		if err == nil && half {
			_ = c.(*net.TCPConn).CloseWrite()
		}
	})
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

// badFleet is a small fleet with short limits that must survive what it is
// sent: in the end it answers, holds nothing and has lost no goroutine.
func badFleet(t *testing.T, change func(c *stack.GatewayConfig)) *fleet.Fleet {
	t.Helper()
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
		c.Edge.ReadTimeout = 400 * time.Millisecond
		c.Edge.MaxBodyBytes = 1 << 20
		if change != nil {
			change(c)
		}
	}})
	f.Post(fleet.CompletionPath, fleet.Ask("hello", 2))
	f.Idle()
	base := goroutines()
	t.Cleanup(func() {
		if got := f.Status("/health"); got != http.StatusOK {
			t.Errorf("/health is %d", got)
		}
		f.Idle()
		f.Eventually("goroutines are back to the base", func() bool { return goroutines() <= base })
		if logs := f.Logs.String(); strings.Contains(logs, "panic") || strings.Contains(logs, "level=ERROR") {
			t.Error("the gateway's log tells of a failure of its own")
		}
	})
	return f
}

// goroutines counts those that are inside this module's code. The libraries'
// idle connections and workers are not: they end minutes later, or with the
// process.
func goroutines() (n int) {
	http.DefaultClient.CloseIdleConnections()
	stacks := make([]byte, 1<<20)
	for {
		size := runtime.Stack(stacks, true)
		if size < len(stacks) {
			stacks = stacks[:size]
			break
		}
		stacks = make([]byte, 2*len(stacks))
	}
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "\ngithub.com/tandem-pd/tandem/") {
			n++
		}
	}
	return n
}

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
func TestBadRequests(t *testing.T) {
	f := badFleet(t, nil)
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
		t.Run(c.name, func(t *testing.T) {
			defer func(outer testing.TB) { f.T = outer }(f.T)
			f.T = t
			replies, closed := exchange(f, c.raw, false, 2)
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

// Two requests in one write are answered in order, each with its own answer.
func TestPipelining(t *testing.T) {
	f := badFleet(t, nil)
	one, two := `{"model":"tandem-sim","max_tokens":3,"prompt":"first of two"}`, `{"model":"tandem-sim","max_tokens":5,"stream":true,"prompt":"second of two"}`
	keep := func(body, id string) []byte {
		return fleet.Request(body, "Content-Length: "+strconv.Itoa(len(body)), "X-Request-Id: "+id)
	}
	raw := slicesJoin(keep(one, "a"), keep(two, "b"), []byte("GET /live HTTP/1.1\r\nHost: g\r\nX-Request-Id: c\r\n\r\n"), fleet.Sized(one, "X-Request-Id: d"))
	replies, closed := exchange(f, raw, false, 5)
	if len(replies) != 4 || !closed {
		t.Fatalf("%d answers, closed %v: %+v", len(replies), closed, replies)
	}
	for i, id := range []string{"a", "b", "c", "d"} {
		if r := replies[i]; r.status != 200 || r.header.Get("X-Request-Id") != id {
			t.Errorf("answer %d is %d to %q", i, r.status, r.header.Get("X-Request-Id"))
		}
	}
	if got, want := f.Text(fleet.Answer{Body: []byte(replies[0].body)}), fleet.Expected(fleet.TextPrompt("first of two"), 3); got != want || replies[3].body == "" {
		t.Errorf("the first answer is %q, want %q", got, want)
	}
	var events []string
	for line := range strings.Lines(replies[1].body) {
		if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok {
			events = append(events, data)
		}
	}
	if got, want := f.Text(fleet.Answer{Events: events}), fleet.Expected(fleet.TextPrompt("second of two"), 5); got != want {
		t.Errorf("the second answer is %q, want %q", got, want)
	}
}

func slicesJoin(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// A client that closes its side has left, whatever it still reads: that is how
// a client that goes away is told from one that waits. A request that is
// answered at once is answered.
func TestHalfClosedConnections(t *testing.T) {
	f := badFleet(t, nil)
	replies, closed := exchange(f, []byte("GET /live HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"), true, 2)
	if len(replies) != 1 || replies[0].status != 200 || !closed {
		t.Errorf("%+v, closed %v", replies, closed)
	}
	long := `{"model":"tandem-sim","max_tokens":100000,"ignore_eos":true,"stream":true,"prompt":"hello"}`
	for name, raw := range map[string][]byte{
		"after a request":  fleet.Sized(long),
		"in the head":      []byte("POST /v1/completions HTTP/1.1\r\nHost: g"),
		"in the body":      fleet.Request(long[:20], "Content-Length: "+strconv.Itoa(len(long))),
		"in a chunk":       fleet.Request("ff\r\n{", "Transfer-Encoding: chunked"),
		"before a request": {},
	} {
		replies, closed := exchange(f, raw, true, 2)
		if !closed || len(replies) > 0 && replies[0].status == 200 && name != "after a request" {
			t.Errorf("%s: %+v, closed %v", name, replies, closed)
		}
	}
	f.Idle()
}

// Bodies and heads that come drop by drop, or never whole, get 408 at the read
// timeout, and nothing of them stays.
func TestDripFed(t *testing.T) {
	f := badFleet(t, nil)
	for name, c := range map[string]struct {
		at   string // sent at once
		drip string // sent a byte every few milliseconds, over and over
	}{
		"a head":                 {"POST /v1/completions HTTP/1.1\r\n", "x-a: b\r\n"},
		"a body":                 {string(fleet.Request("", "Content-Length: 100000")), " "},
		"a chunked body":         {string(fleet.Request("", "Transfer-Encoding: chunked")), "1\r\n \r\n"},
		"a body that stops":      {string(fleet.Request(small[:10], "Content-Length: 100")), ""},
		"a chunk that stops":     {string(fleet.Request("ff\r\n{", "Transfer-Encoding: chunked")), ""},
		"a head that stops":      {"POST /v1/completions HTTP/1.1\r\nHost: g\r\n", ""},
		"a request line, barely": {"PO", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, c.at); err != nil {
				t.Fatal(err)
			}
			stop, dripped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(dripped)
				for i := 0; c.drip != ""; i++ {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
					if _, err := conn.Write([]byte{c.drip[i%len(c.drip)]}); err != nil {
						return
					}
				}
			}()
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			close(stop)
			<-dripped
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if body, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusRequestTimeout || !bytes.Contains(body, []byte(`"code":"request_timeout"`)) {
				t.Errorf("status %d: %s", res.StatusCode, body)
			}
		})
	}
}

// A slow but steady sender within the time is served like any other.
func TestByteByByte(t *testing.T) {
	f := badFleet(t, func(c *stack.GatewayConfig) { c.Edge.ReadTimeout = 10 * time.Second })
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, b := range fleet.Sized(small) {
		if _, err := conn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, _ := io.ReadAll(res.Body); res.StatusCode != 200 || f.Text(fleet.Answer{Body: body}) != fleet.Expected(fleet.TextPrompt("hello there"), 2) {
		t.Errorf("status %d: %s", res.StatusCode, body)
	}
}

// Bombs and large bodies, many at once, cost what they weigh and no multiple of
// it.
func TestBombsCostLittle(t *testing.T) {
	f := badFleet(t, nil)
	bomb := fleet.Sized(zipped(t), "Content-Encoding: gzip")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const bombs = 50 // 3.2 GiB if anyone inflated them
	for range bombs {
		if replies, _ := exchange(f, bomb, false, 1); len(replies) != 1 || replies[0].status != http.StatusUnsupportedMediaType {
			t.Fatalf("%+v", replies)
		}
	}
	runtime.ReadMemStats(&after)
	if spent := (after.TotalAlloc - before.TotalAlloc) / bombs; spent > 4<<20 {
		t.Errorf("%d bytes allocated for each bomb of %d", spent, len(bomb))
	}
}
