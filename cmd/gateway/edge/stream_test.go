package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// TestStreamPassesBytes checks head and body of a stream, and that the
// connection serves on afterwards.
func TestStreamPassesBytes(t *testing.T) {
	sv := serve(t, loopback(t), answerStream)
	c := sv.dial()
	for range 3 {
		c.send(post(streamBody))
		resp, body := c.receive()
		if resp.StatusCode != 200 || body != wholeStream {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
		if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
			t.Errorf("content type %q", ct)
		}
		if !slices.Equal(resp.TransferEncoding, []string{"chunked"}) || resp.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("head %v", resp)
		}
	}
	eventually(t, "three answers counted and no stream open", func() bool {
		return sv.metric("tandem_frontend_http_responses_total", "completions", "200") == 3 && sv.metric("tandem_frontend_open_streams") == 0
	})
	if n := sv.metric("tandem_frontend_disconnected_clients"); n != 0 {
		t.Errorf("%v clients counted as gone", n)
	}
}

// TestKeepAliveIsReused by Go's own client, over streams and other answers.
func TestKeepAliveIsReused(t *testing.T) {
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		if c.Request.Stream {
			return answerStream(ctx, c, out)
		}
		return answerJSON(ctx, c, out)
	})
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	for i := range 20 {
		resp, err := (&http.Client{Transport: tr}).Post("http://"+sv.ln.Addr().String()+"/v1/completions", "application/json",
			strings.NewReader([]string{goodBody, streamBody}[i%2]))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if n := sv.main.conns.len(); n != 1 {
			t.Fatalf("%d connections after %d requests", n, i+1)
		}
	}
}

// TestPipelinedRequests come with a streamed one in one segment, and while it
// streams.
func TestPipelinedRequests(t *testing.T) {
	begun, proceed := make(chan struct{}, 1), make(chan struct{}, 1)
	sv := serve(t, loopback(t), func(_ context.Context, _ handoff.Call, out handoff.Sink) error {
		out.Start(openai.EventStream)
		out.Write([]byte(": begun\n\n"))
		begun <- struct{}{}
		<-proceed
		return writeStream(out)
	})
	const want = ": begun\n\n" + wholeStream
	c := sv.dial()

	c.send(post(streamBody), post(streamBody))
	for range 2 {
		<-begun
		proceed <- struct{}{}
		if _, body := c.receive(); body != want {
			t.Errorf("in one segment: %q", body)
		}
	}

	c.send(post(streamBody))
	<-begun
	c.send(post(streamBody, "x-request-id: second"))
	proceed <- struct{}{}
	if _, body := c.receive(); body != want {
		t.Errorf("while it streams, the first: %q", body)
	}
	<-begun
	proceed <- struct{}{}
	if resp, body := c.receive(); body != want || resp.Header.Get("X-Request-Id") != "second" {
		t.Errorf("while it streams, the second: %q", body)
	}
}

// TestPipelinedStreamEndsBeforeTheNextAnswer: a stream leaves whole although
// fasthttp, seeing another request, does not flush.
func TestPipelinedStreamEndsBeforeTheNextAnswer(t *testing.T) {
	proceed := make(chan struct{})
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		if c.ID == "second" {
			<-proceed
		}
		return answerStream(ctx, c, out)
	})
	c := sv.dial()
	c.send(post(streamBody), post(streamBody, "x-request-id: second"))
	if _, body := c.receive(); body != wholeStream {
		t.Errorf("the first: %q", body)
	}
	close(proceed)
	if _, body := c.receive(); body != wholeStream {
		t.Errorf("the second: %q", body)
	}
}

// tally is a listener whose connections remember their writes.
type tally struct {
	net.Listener
	mu     sync.Mutex
	writes []string
}

func (l *tally) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tallied{c, l}, nil
}

func (l *tally) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.writes
	l.writes = nil
	return w
}

type tallied struct {
	net.Conn
	l *tally
}

func (c *tallied) Write(p []byte) (int, error) {
	c.l.mu.Lock()
	c.l.writes = append(c.l.writes, string(p))
	c.l.mu.Unlock()
	return c.Conn.Write(p)
}

// TestWritesOnTheWire counts them: the head leaves with the first event, a
// batch in one write however large, the end of the body with the last event.
func TestWritesOnTheWire(t *testing.T) {
	events := func(n int) string { return strings.Repeat("data: 0123456789abcdef\n\n", n) }
	step := make(chan string)
	ln := &tally{Listener: loopback(t)}
	sv := serve(t, ln, func(_ context.Context, c handoff.Call, out handoff.Sink) error {
		out.Start(openai.EventStream)
		for s := range step {
			if err := out.Write([]byte(s)); err != nil {
				return err
			}
		}
		return nil
	})
	c := sv.dial()
	c.send(post(streamBody))
	var body io.Reader
	for i, batch := range []string{events(1), events(1), events(1000), events(160)} {
		step <- batch
		if i == 0 {
			body = c.head().Body
		}
		got := make([]byte, len(batch))
		if _, err := io.ReadFull(body, got); err != nil || string(got) != batch {
			t.Fatalf("batch %d: %d bytes differ, %v", i, len(got), err)
		}
		w := ln.take()
		if len(w) != 1 {
			t.Errorf("batch %d of %d bytes left in %d writes", i, len(batch), len(w))
		}
		if i == 0 && (!strings.HasPrefix(w[0], "HTTP/1.1 200 OK\r\n") || !strings.Contains(w[0], events(1))) {
			t.Errorf("the first write is %q", w[0])
		}
	}
	close(step)
	if rest, err := io.ReadAll(body); err != nil || len(rest) != 0 {
		t.Errorf("the rest is %q, %v", rest, err)
	}
	if w := ln.take(); !slices.Equal(w, []string{"0\r\n\r\n"}) {
		t.Errorf("the end left as %q", w)
	}
}

// TestEndLeavesWithTheLastEvents when the flow knows them to be the last: with a short answer's head all is one write.
func TestEndLeavesWithTheLastEvents(t *testing.T) {
	ln := &tally{Listener: loopback(t)}
	sv := serve(t, ln, func(_ context.Context, c handoff.Call, out handoff.Sink) error {
		out.Start(openai.EventStream)
		return out.Last([]byte(wholeStream))
	})
	c := sv.dial()
	c.send(post(streamBody))
	if body, err := io.ReadAll(c.head().Body); string(body) != wholeStream || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	w := ln.take()
	if len(w) != 1 || !strings.HasPrefix(w[0], "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(w[0], "data: [DONE]\n\n\r\n0\r\n\r\n") {
		t.Errorf("the writes: %q", w)
	}
}

// beats turns the heartbeat on.
func beats(c *Config) { c.Heartbeat = 15 * time.Second }

// TestHeartbeat: a stream that is silent, or has not started, gets a line
// each interval.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
			time.Sleep(50 * time.Second)
			out.Start(openai.EventStream)
			out.Write([]byte("data: 1\n\n"))
			time.Sleep(40 * time.Second)
			out.Write([]byte("data: 2\n\n"))
			time.Sleep(14 * time.Second)
			return out.Write([]byte("data: 3\n\n"))
		}, beats)
		c := sv.dial()
		begin := time.Now()
		c.send(post(streamBody))
		resp := c.head()
		if waited := time.Since(begin); waited != sv.cfg.Heartbeat {
			t.Errorf("the head came after %v", waited)
		}
		body, err := io.ReadAll(resp.Body)
		if want := ping + ping + ping + "data: 1\n\n" + ping + ping + "data: 2\n\ndata: 3\n\n"; string(body) != want || err != nil {
			t.Errorf("got %q, %v; want %q", body, err, want)
		}
	})
}

// TestReadersOutliveTheHeartbeat: readers that differ from the specification get the same events with heartbeats as without, chunk by chunk.
func TestReadersOutliveTheHeartbeat(t *testing.T) {
	event := func(data string) (string, bool) {
		data = strings.TrimSpace(data)
		return data, data == "[DONE]" || json.Valid([]byte(data))
	}
	readers := map[string]func(chunks []string) (events []string, ok bool){
		// openai-go 3.42, packages/ssestream/ssestream.go: an empty line is an event, even without data.
		"openai-go": func(chunks []string) (events []string, ok bool) {
			data := ""
			for line := range strings.Lines(strings.Join(chunks, "")) {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
				if name == "data" {
					data += value
				}
				if line == "\n" {
					e, ok := event(data)
					if events, data = append(events, e), ""; !ok {
						return events, false
					}
				}
			}
			return events, true
		},
		// SGLang 0.5.23, benchmark/serving.py: each line that is not blank is an event.
		"SGLang": func(chunks []string) (events []string, ok bool) {
			for line := range strings.Lines(strings.Join(chunks, "")) {
				if line = strings.TrimSpace(line); line != "" {
					e, ok := event(strings.TrimPrefix(line, "data: "))
					if events = append(events, e); !ok {
						return events, false
					}
				}
			}
			return events, true
		},
		// vLLM 0.32, benchmarks/lib/endpoint_request_func.py: chunks are stripped, and an event is what then begins with data.
		"vLLM": func(chunks []string) (events []string, ok bool) {
			buffer := ""
			for _, chunk := range chunks {
				buffer += strings.TrimSpace(chunk)
				if e, whole := event(strings.TrimPrefix(buffer, "data: ")); whole {
					events, buffer = append(events, e), ""
				}
			}
			return events, buffer == ""
		},
	}
	chunks := []string{ping, ping, "data: 1\n\n", ping, "data: 2\n\n", "data: [DONE]\n\n"}
	for name, read := range readers {
		if events, ok := read(chunks); !ok || !slices.Equal(events, []string{"1", "2", "[DONE]"}) {
			t.Errorf("%s reads %q, %v", name, events, ok)
		}
	}
}

// TestFailuresAroundTheFirstHeartbeat: a failure has its own status until the
// first line has left, and is an event of the stream after that. Answers
// that are not streamed have a status whenever they fail.
func TestFailuresAroundTheFirstHeartbeat(t *testing.T) {
	full := openai.Unavailable("no_worker", "no worker takes requests")
	for _, tc := range []struct {
		name, body string
		fails      time.Duration
		err        error
		status     int
		code       string
		event      bool
	}{
		{"before", streamBody, 14 * time.Second, full, 503, "no_worker", false},
		{"after", streamBody, 31 * time.Second, full, 200, "no_worker", true},
		{"without a status", streamBody, 31 * time.Second, errors.New("broken"), 200, "internal_error", true},
		{"without an answer", streamBody, 31 * time.Second, nil, 200, "internal_error", true},
		{"not streamed", goodBody, 31 * time.Second, full, 503, "no_worker", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sv := serve(t, newPipes(), func(context.Context, handoff.Call, handoff.Sink) error {
					time.Sleep(tc.fails)
					return tc.err
				}, beats)
				c := sv.dial()
				c.send(post(tc.body))
				if !tc.event {
					resp, body := c.receive()
					wantError(t, resp, body, tc.status, tc.code)
					return
				}
				resp, body := c.failed()
				pings, event, ok := strings.Cut(body, "data: ")
				if resp.StatusCode != tc.status || !ok || pings != ping+ping || !strings.Contains(event, `"code":"`+tc.code+`"`) || strings.Contains(body, "[DONE]") {
					t.Errorf("status %d, body %q", resp.StatusCode, body)
				}
			})
		})
	}
}

// TestOldClientsGetNoChunks: HTTP/1.0 has none, so that a body without a length
// ends with its connection.
func TestOldClientsGetNoChunks(t *testing.T) {
	sv := serve(t, loopback(t), func(_ context.Context, c handoff.Call, out handoff.Sink) error {
		if c.Request.Stream {
			out.Start(openai.EventStream)
			return writeStream(out)
		}
		out.Start("application/json")
		return out.Write(make([]byte, 1<<20))
	})
	old := func(body string) string {
		option := "Connection: close"
		if body == streamBody {
			option = "Connection: keep-alive" // which cannot be granted
		}
		return strings.Replace(post(body, option), "HTTP/1.1", "HTTP/1.0", 1)
	}
	answer := func(body string) (head, rest string, err error) {
		c := sv.dial()
		c.send(old(body))
		raw, err := io.ReadAll(c)
		head, rest, _ = strings.Cut(string(raw), "\r\n\r\n")
		return head + "\r\n", rest, err
	}
	head, body, err := answer(streamBody)
	if err != nil || body != wholeStream || strings.Contains(head, "Transfer-Encoding") || !strings.Contains(head, "Connection: close\r\n") || !strings.Contains(head, "Content-Type: text/event-stream; charset=utf-8\r\n") {
		t.Errorf("the head %q, the body %q, %v", head, body, err)
	}
	head, body, err = answer(goodBody)
	if err != nil || len(body) != 1<<20 || strings.Contains(head, "Transfer-Encoding") {
		t.Errorf("the head %q, %d bytes, %v", head, len(body), err)
	}
	if got := sv.metric("tandem_frontend_http_responses_total"); got != 2 {
		t.Errorf("%v answers were counted, want 2", got)
	}
}

// TestClientLeavesDuringHeartbeats: what waits behind the comments ends with
// its client.
func TestClientLeavesDuringHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		sv := serve(t, newPipes(), func(ctx context.Context, _ handoff.Call, _ handoff.Sink) error {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return context.Cause(ctx)
		}, beats)
		c := sv.dial()
		c.send(post(streamBody))
		c.SetReadDeadline(time.Now().Add(time.Minute))
		c.head()
		c.Close()
		if err := <-ended; !errors.Is(err, fault.ErrClientGone) {
			t.Errorf("the flow ended by %v", err)
		}
		synctest.Wait()
		if strings.Contains(sv.logs.String(), "without a status") {
			t.Errorf("a client that left is taken for a failure:\n%s", sv.logs)
		}
	})
}

// TestAnswersThatAreNotStreams have a length, and a status of their own when they fail late.
func TestAnswersThatAreNotStreams(t *testing.T) {
	var size int
	var fail error
	sv := serve(t, loopback(t), func(_ context.Context, _ handoff.Call, out handoff.Sink) error {
		out.Start("application/json")
		for range size / 100 {
			if err := out.Write([]byte(strings.Repeat("x", 100))); err != nil {
				return err
			}
		}
		return fail
	})
	for _, tc := range []struct {
		size int
		fail error
	}{{100, nil}, {1_000_000, nil}, {100, openai.BadGateway("engine_failed", "it failed")}} {
		size, fail = tc.size, tc.fail
		c := sv.dial()
		c.send(post(goodBody))
		resp, body := c.receive()
		if tc.fail != nil {
			wantError(t, resp, body, 502, "engine_failed")
			continue
		}
		if len(body) != size || int(resp.ContentLength) != size {
			t.Errorf("size %d: got %d bytes, Content-Length %d", size, len(body), resp.ContentLength)
		}
	}
	if n := sv.metric("tandem_frontend_disconnected_clients"); n != 0 {
		t.Errorf("%v clients counted as gone, who did nothing", n)
	}
}

// TestStreamsThatFail: after Start the flow itself has written its error event, the edge writes one for a panic. Both end
// the body without its last chunk: vllm bench, AIPerf, hey and curl count a whole one as a success.
func TestStreamsThatFail(t *testing.T) {
	fails := map[string]func() error{
		"error": func() error { return errors.New("told already") },
		"panic": func() error { panic("ouch") },
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			sv := serve(t, loopback(t), func(_ context.Context, _ handoff.Call, out handoff.Sink) error {
				out.Start(openai.EventStream)
				if err := out.Write([]byte("data: 1\n\n")); err != nil {
					return err
				}
				return fail()
			})
			c := sv.dial()
			c.send(post(streamBody))
			resp, body := c.failed()
			rest, ok := strings.CutPrefix(body, "data: 1\n\n")
			if !ok || strings.Contains(body, "[DONE]") {
				t.Errorf("got %q", body)
			}
			if name == "error" && rest != "" {
				t.Errorf("the edge added %q", rest)
			}
			if id := resp.Header.Get("X-Request-Id"); name == "panic" && (!strings.Contains(rest, `data: {"error":{`) ||
				!strings.Contains(rest, id) || !strings.HasSuffix(rest, "\n\n")) {
				t.Errorf("the edge said %q", rest)
			}
		})
	}
}

// BenchmarkStream is one request with eight events behind it, over loopback
// and a connection that stays.
func BenchmarkStream(b *testing.B) {
	event := fmt.Appendf(nil, "data: %s\n\n", strings.Repeat("x", 250))
	sv := serve(b, loopback(b), func(_ context.Context, _ handoff.Call, out handoff.Sink) error {
		out.Start(openai.EventStream)
		for range 8 {
			if err := out.Write(event); err != nil {
				return err
			}
		}
		return nil
	})
	c := sv.dial()
	request := []byte(post(streamBody))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Write(request); err != nil {
			b.Fatal(err)
		}
		resp := c.head()
		if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(8*len(event)) {
			b.Fatal(n, err)
		}
	}
}

// A request that is refused by its head, or cannot be read, is answered also behind a stream on the same connection: it
// was not, and one that could not be read was read again and again.
func TestRefusalsBehindAStreamAreAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		status  int
		code    string
	}{
		"unreadable": {"NONSENSE\r\n\r\n", 400, "malformed_request"},
		"too large":  {"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n", 413, "request_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			cl := serve(t, loopback(t), answerStream).dial()
			cl.send(post(streamBody))
			if _, body := cl.receive(); body != wholeStream {
				t.Fatalf("the stream: %q", body)
			}
			cl.send(c.request)
			_ = cl.SetReadDeadline(time.Now().Add(10 * time.Second))
			resp, body := cl.receive()
			wantError(t, resp, body, c.status, c.code)
		})
	}
}
