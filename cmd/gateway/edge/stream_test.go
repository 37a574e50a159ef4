package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// TestPipelinedRequests come with a streamed one in one segment, and while it
// streams. Each stream leaves whole before the next has an answer, although fasthttp,
// seeing another request, does not flush.
func TestPipelinedRequests(t *testing.T) {
	const later = 50
	begun, proceed := make(chan struct{}, 1), make(chan struct{}, 1)
	sv := serve(t, loopback(t), func(_ context.Context, _ *handoff.Call, out handoff.Sink) error {
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
		_, body := c.receive()
		assert.Equal(t, want, body, "in one segment")
	}

	c.send(post(streamBody, "x-request-id: 0"))
	<-begun
	for i := range later { // each wakes the watcher
		c.send(post(streamBody, fmt.Sprint("x-request-id: ", i+1)))
	}
	for i := range later + 1 {
		proceed <- struct{}{}
		resp, body := c.receive()
		assert.Equal(t, want, body, "while the first streams: %d", i)
		assert.Equal(t, fmt.Sprint(i), resp.Header.Get("X-Request-Id"))
		if i < later {
			<-begun
		}
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
	sv := serve(t, ln, func(_ context.Context, c *handoff.Call, out handoff.Sink) error {
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
		_, err := io.ReadFull(body, got)
		require.NoError(t, err)
		require.Equal(t, batch, string(got))
		w := ln.take()
		assert.Len(t, w, 1, "batch %d of %d bytes left in N writes", i, len(batch))
		assert.True(t, i != 0 || strings.HasPrefix(w[0], "HTTP/1.1 200 OK\r\n") && strings.Contains(w[0], events(1)),
			"the first write is %q", w[0])
	}
	close(step)
	rest, err := io.ReadAll(body)
	assert.NoError(t, err)
	assert.Empty(t, rest)
	assert.Equal(t, []string{"0\r\n\r\n"}, ln.take(), "the end")
}

// TestEndLeavesWithTheLastEvents when the flow knows them to be the last: with a short answer's head all is one write.
func TestEndLeavesWithTheLastEvents(t *testing.T) {
	ln := &tally{Listener: loopback(t)}
	sv := serve(t, ln, func(_ context.Context, c *handoff.Call, out handoff.Sink) error {
		out.Start(openai.EventStream)
		return out.Last([]byte(wholeStream))
	})
	_, body := sv.ask(post(streamBody))
	assert.Equal(t, wholeStream, body)
	w := ln.take()
	require.Len(t, w, 1)
	assert.Regexp(t, `(?s)^HTTP/1.1 200 OK\r\n.*data: \[DONE\]\n\n\r\n0\r\n\r\n$`, w[0])
}

// beats turns the heartbeat on.
func beats(c *Config) { c.Heartbeat = 15 * time.Second }

// TestHeartbeat: a stream that is silent, or has not started, gets a line
// each interval.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sv := serve(t, newPipes(), func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
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
		assert.Equal(t, sv.cfg.Heartbeat, time.Since(begin), "the head")
		body, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		assert.Equal(t, ping+ping+ping+"data: 1\n\n"+ping+ping+"data: 2\n\ndata: 3\n\n", string(body))
	})
}

// TestReadersOutliveTheHeartbeat: readers that deviate from the specification get the same events with heartbeats.
func TestReadersOutliveTheHeartbeat(t *testing.T) {
	readers := map[string]func(chunks []string) (events []string){
		// openai-go 3.42, packages/ssestream/ssestream.go: an empty line is an event, even without data.
		"openai-go": func(chunks []string) (events []string) {
			data := ""
			for line := range strings.Lines(strings.Join(chunks, "")) {
				name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
				if name == "data" {
					data += strings.TrimSpace(value)
				}
				if line == "\n" {
					events, data = append(events, data), ""
				}
			}
			return events
		},
		// SGLang 0.5.23, benchmark/serving.py: each line that is not blank is an event.
		"SGLang": func(chunks []string) (events []string) {
			for line := range strings.Lines(strings.Join(chunks, "")) {
				if line = strings.TrimSpace(line); line != "" {
					events = append(events, strings.TrimPrefix(line, "data: "))
				}
			}
			return events
		},
		// vLLM 0.32, benchmarks/lib/endpoint_request_func.py: chunks are stripped, and an event is what then begins with data.
		"vLLM": func(chunks []string) (events []string) {
			buffer := ""
			for _, chunk := range chunks {
				buffer += strings.TrimSpace(chunk)
				if data := strings.TrimPrefix(buffer, "data: "); data == "[DONE]" || json.Valid([]byte(data)) {
					events, buffer = append(events, data), ""
				}
			}
			return events
		},
	}
	chunks := []string{ping, ping, "data: 1\n\n", ping, "data: 2\n\n", "data: [DONE]\n\n"}
	for name, read := range readers {
		assert.Equal(t, []string{"1", "2", "[DONE]"}, read(chunks), name)
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
		bubble(t, tc.name, func(t *testing.T) {
			sv := serve(t, newPipes(), func(context.Context, *handoff.Call, handoff.Sink) error {
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
			assert.Equal(t, tc.status, resp.StatusCode)
			assert.Regexp(t, "^"+ping+ping+`data: .*"code":"`+tc.code+`"`, body)
			assert.NotContains(t, body, "[DONE]")
		})
	}
}

// TestOldClientsGetNoChunks: HTTP/1.0 has none, so that a body without a length
// ends with its connection.
func TestOldClientsGetNoChunks(t *testing.T) {
	sv := serve(t, loopback(t), func(_ context.Context, c *handoff.Call, out handoff.Sink) error {
		if c.Request.Stream {
			out.Start(openai.EventStream)
			return writeStream(out)
		}
		out.Start("application/json")
		return out.Write(make([]byte, 1<<20))
	})
	answer := func(body, option string) (head, rest string) {
		c := sv.dial()
		c.send(strings.Replace(post(body, option), "HTTP/1.1", "HTTP/1.0", 1))
		raw, err := io.ReadAll(c)
		require.NoError(t, err)
		head, rest, _ = strings.Cut(string(raw), "\r\n\r\n")
		assert.NotContains(t, head, "Transfer-Encoding")
		return head + "\r\n", rest
	}
	head, body := answer(streamBody, "Connection: keep-alive") // which cannot be granted
	assert.Contains(t, head, "Connection: close\r\n")
	assert.Contains(t, head, "Content-Type: text/event-stream; charset=utf-8\r\n")
	assert.Equal(t, wholeStream, body)
	_, body = answer(goodBody, "Connection: close")
	assert.Len(t, body, 1<<20)
	assert.EqualValues(t, 2, sv.metric("tandem_frontend_http_responses_total"))
}

// TestClientLeavesDuringHeartbeats: what waits behind the comments ends with
// its client.
func TestClientLeavesDuringHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		sv := serve(t, newPipes(), func(ctx context.Context, _ *handoff.Call, _ handoff.Sink) error {
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return context.Cause(ctx)
		}, beats)
		c := sv.dial()
		c.send(post(streamBody))
		c.SetReadDeadline(time.Now().Add(time.Minute))
		c.head()
		c.Close()
		assert.ErrorIs(t, <-ended, fault.ErrClientGone)
		synctest.Wait()
		assert.NotContains(t, sv.logs.String(), "without a status", "a client that left is taken for a failure")
	})
}

// TestAnswersThatAreNotStreams have a length, and a status of their own when they fail late.
func TestAnswersThatAreNotStreams(t *testing.T) {
	var size int
	var fail error
	sv := serve(t, loopback(t), func(_ context.Context, _ *handoff.Call, out handoff.Sink) error {
		out.Start("application/json")
		for range size / 100 {
			if err := out.Write([]byte(strings.Repeat("x", 100))); err != nil {
				return err
			}
		}
		return fail
	})
	for _, size = range []int{100, 1_000_000} {
		resp, body := sv.ask(post(goodBody))
		assert.Len(t, body, size)
		assert.EqualValues(t, size, resp.ContentLength)
	}
	fail = openai.BadGateway("engine_failed", "it failed")
	sv.refuses(post(goodBody), 502, "engine_failed")
	assert.Zero(t, sv.metric("tandem_frontend_disconnected_clients"), "who did nothing")
}

// TestStreamsThatFail: after Start the flow itself has written its error event, the edge writes one for a panic. Both end
// the body without its last chunk: vllm bench, AIPerf, hey and curl count a whole one as a success.
func TestStreamsThatFail(t *testing.T) {
	for name, fail := range map[string]func() error{
		"error": func() error { return errors.New("reported already") },
		"panic": func() error { panic("ouch") },
	} {
		sv := serve(t, loopback(t), func(_ context.Context, _ *handoff.Call, out handoff.Sink) error {
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
		assert.True(t, ok, body)
		if name == "error" {
			assert.Empty(t, rest)
			continue
		}
		assert.Regexp(t, `^data: \{"error":\{.*`+resp.Header.Get("X-Request-Id")+`.*\n\n$`, rest)
		assert.NotContains(t, body, "[DONE]")
	}
}

// BenchmarkStream is one request with eight events behind it, over loopback
// and a connection that stays.
func BenchmarkStream(b *testing.B) {
	event := fmt.Appendf(nil, "data: %s\n\n", strings.Repeat("x", 250))
	sv := serve(b, loopback(b), func(_ context.Context, _ *handoff.Call, out handoff.Sink) error {
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
