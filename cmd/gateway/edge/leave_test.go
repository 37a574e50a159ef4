package edge

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// TestLeavingClientsAreSeen: clients leave before the first byte, in mid-stream, over TLS with and without a farewell, and behind
// a request that they sent early, while nothing is written: their flows' contexts end. Of half of them they end at once; the
// machine may be busy with others.
func TestLeavingClientsAreSeen(t *testing.T) {
	const clients = 50
	for _, tc := range []struct {
		name                    string
		secure, start, farewell bool
		early                   string
		bound                   time.Duration
	}{
		{"before the first byte", false, false, true, "", 20 * time.Millisecond},
		{"in mid-stream", false, true, true, "", 20 * time.Millisecond},
		{"TLS, before the first byte", true, false, true, "", 50 * time.Millisecond},
		{"TLS, in mid-stream", true, true, true, "", 50 * time.Millisecond},
		{"TLS, without a farewell", true, true, false, "", 50 * time.Millisecond},
		{"TLS, behind an early request", true, true, false, post(goodBody), 50 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			begun, ended := make(chan struct{}, clients), make(chan error, clients)
			flow := func(ctx context.Context, _ *handoff.Call, out handoff.Sink) error {
				if tc.start {
					out.Start("text/event-stream; charset=utf-8")
					if err := out.Write([]byte("data: 1\n\n")); err != nil {
						return err
					}
				}
				begun <- struct{}{}
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return ctx.Err()
			}
			v := newVouched(t)
			sv := serve(t, loopback(t), flow, v.where(tc.secure))
			var took []time.Duration
			for range clients {
				c := sv.dial()
				connection := c.Conn
				if tc.secure {
					c = c.secured(v.client(t, nil))
				}
				c.send(post(streamBody), tc.early)
				if tc.start {
					c.head()
				}
				<-begun
				left := time.Now()
				if tc.farewell {
					c.Close()
				}
				connection.Close()
				assert.ErrorIs(t, <-ended, fault.ErrClientGone)
				took = append(took, time.Since(left))
			}
			slices.Sort(took)
			assert.LessOrEqual(t, took[clients/2], tc.bound, "the median")
			eventually(t, "the end of connections and flows", func() bool { return sv.main.server.Conns.Len()+sv.live.Len() == 0 })
			// A response is counted after its connection and its flow have ended.
			eventually(t, "every client counted as gone and under 499", func() bool {
				return sv.metric("tandem_frontend_disconnected_clients") == clients &&
					sv.metric("tandem_frontend_open_connections", "streaming") == 0 &&
					sv.metric("tandem_frontend_http_responses_total", "completions", "499") == clients
			})
			assert.Empty(t, sv.logs.String(), "the flow logs its own requests")
		})
	}
}

// TestClientThatStopsReading: a client that takes a part of a write now and then is kept, plain and over TLS; one that takes
// nothing is given up after WriteStall, and the flow, which waits for room, gets to know.
func TestClientThatStopsReading(t *testing.T) {
	for _, secure := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			v, ended := newVouched(t), make(chan error, 2)
			sv := serve(t, newPipes(), func(ctx context.Context, _ *handoff.Call, out handoff.Sink) error {
				out.Start(openai.EventStream)
				for {
					if err := out.Write([]byte("data: " + strings.Repeat("x", 60<<10) + "\n\n")); err != nil {
						ended <- err
						ended <- context.Cause(ctx)
						return err
					}
				}
			}, v.where(secure))
			c := v.dial(sv, secure)
			c.send(post(streamBody))
			body := c.head().Body
			for range 10 {
				time.Sleep(sv.cfg.WriteStall / 2)
				_, err := io.ReadFull(body, make([]byte, 20<<10))
				require.NoError(t, err)
			}
			require.Empty(t, ended, "a client that reads was given up")
			begin := time.Now()
			assert.ErrorIs(t, <-ended, fault.ErrClientGone)
			assert.WithinRange(t, time.Now(), begin.Add(sv.cfg.WriteStall*7/8), begin.Add(sv.cfg.WriteStall*9/8), "TLS: %t", secure)
			cause := <-ended
			assert.ErrorIs(t, cause, fault.ErrClientGone)
			assert.ErrorContains(t, cause, "stopped reading")
			<-sv.main.server.Conns.Empty()
			<-sv.live.Empty()
			assert.EqualValues(t, 1, sv.metric("tandem_frontend_disconnected_clients"))
		})
	}
}

// TestSlowClientSlowsTheFlow: what is queued for a client that reads slowly
// stays within the ring.
func TestSlowClientSlowsTheFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const event = 1000
		written := 0
		sv := serve(t, newPipes(), func(_ context.Context, _ *handoff.Call, out handoff.Sink) error {
			out.Start("text/event-stream; charset=utf-8")
			for range 500 {
				if err := out.Write(make([]byte, event)); err != nil {
					return err
				}
				written += event
			}
			return nil
		})
		c := sv.dial()
		c.send(post(streamBody))
		body := c.head().Body
		p := make([]byte, 100)
		for read := 0; read < 500*event; {
			n, err := body.Read(p)
			require.NoError(t, err)
			read += n
			synctest.Wait()
			require.LessOrEqual(t, written-read, 16<<10, "one write, and this reader's buffer")
		}
	})
}

// TestShutdown covers its three ways: nothing to wait for, streams that end in
// time, and streams that do not.
func TestShutdown(t *testing.T) {
	stream := func(d time.Duration) flowFunc {
		return func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
			if c.Request.Stream {
				out.Start("text/event-stream; charset=utf-8")
				out.Write([]byte("data: 1\n\n"))
			}
			select {
			case <-time.After(d):
				return writeStream(out)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	bubble(t, "idle", func(t *testing.T) {
		sv := serve(t, newPipes(), answerJSON)
		fresh, used := sv.dial(), sv.dial()
		used.send(post(goodBody))
		used.receive()
		begin := time.Now()
		assert.NoError(t, sv.Shutdown(t.Context()))
		assert.LessOrEqual(t, time.Since(begin), time.Second)
		fresh.closed()
		used.closed()
	})
	bubble(t, "in time", func(t *testing.T) {
		sv := serve(t, newPipes(), stream(10*time.Second))
		c, health := sv.dial(), sv.dial()
		c.send(post(streamBody))
		body := c.head().Body
		health.send("GET /health HTTP/1.1\r\n") // begun before, ended after
		synctest.Wait()
		done := make(chan error, 1)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { done <- sv.Shutdown(ctx) }()
		synctest.Wait()
		resp, text := health.ask("Host: t\r\n\r\n")
		assert.True(t, resp.StatusCode == 503 && strings.Contains(text, "draining") && resp.Close, "/health: %d %s", resp.StatusCode, text)
		_, err := sv.ln.Accept()
		assert.Error(t, err, "still accepting")
		b, err := io.ReadAll(body)
		assert.NoError(t, err)
		assert.Equal(t, "data: 1\n\n"+wholeStream, string(b))
		assert.NoError(t, <-done)
		took := time.Since(begin)
		assert.True(t, took >= 10*time.Second && took <= 11*time.Second, "took %v", took)
	})
	bubble(t, "cut", func(t *testing.T) {
		sv := serve(t, newPipes(), stream(time.Hour))
		streaming, waiting := sv.dial(), sv.dial()
		streaming.send(post(streamBody))
		body := streaming.head().Body
		waiting.send(post(goodBody))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		done := make(chan error, 1)
		begin := time.Now()
		go func() { done <- sv.Shutdown(ctx) }()
		resp, e := waiting.receive()
		wantError(t, resp, e, 503, "shutting_down")
		b, err := io.ReadAll(body)
		if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(string(b), `"code":"shutting_down"`) ||
			strings.Contains(string(b), "[DONE]") {
			t.Errorf("the stream: %q, %v", b, err)
		}
		assert.ErrorIs(t, <-done, context.DeadlineExceeded)
		assert.LessOrEqual(t, time.Since(begin), 10*time.Second+cutGrace)
		assert.Zero(t, sv.main.server.Conns.Len()+sv.live.Len(), "connections or flows are left")
	})
	bubble(t, "before serving", func(t *testing.T) {
		s := unserved(t, DefaultConfig())
		assert.NoError(t, s.Shutdown(t.Context()))
		assert.NoError(t, s.Serve(newPipes()), "serving after the shutdown")
	})
}
