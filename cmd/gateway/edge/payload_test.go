package edge

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// TestDeclaredBodiesTakeNoMemory: memory follows what has arrived of a body,
// however much its head, or a chunk, declares.
func TestDeclaredBodiesTakeNoMemory(t *testing.T) {
	const clients = 40
	const declared = "Content-Length: 67108864"
	for name, c := range map[string]struct {
		head   string
		sent   int
		status int
	}{
		"declared":        {get("POST /v1/completions", declared), 110, 408},
		"declared, begun": {get("POST /v1/completions", declared), 20_000, 408},
		"declared, more":  {get("POST /v1/completions", declared), 100_000, 408},
		"one chunk":       {get("POST /v1/completions", "Transfer-Encoding: chunked") + "3ffffff\r\n", 110, 408},
		"no body taken":   {get("GET /live", declared), 110, 200},
		"no route":        {get("POST /nowhere", declared), 110, 408},
	} {
		t.Run(name, func(t *testing.T) {
			sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.ReadTimeout = time.Second }) // all are sent by then
			sv.serves(post(goodBody))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var all []*client
			for range clients {
				c1 := sv.dial()
				c1.send(c.head, strings.Repeat(" ", c.sent))
				all = append(all, c1)
			}
			for _, c1 := range all {
				if resp, body := c1.receive(); resp.StatusCode != c.status {
					t.Fatalf("status %d: %s", resp.StatusCode, body)
				}
			}
			runtime.ReadMemStats(&after)
			// A connection has buffers of its own, 40 KiB; the body may take sixteen times what came, and the buffer before.
			limit := uint64(128<<10 + (declaredGrowth+1)*c.sent)
			assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/clients, limit,
				"bytes allocated a connection that sent %d, want at most", c.sent)
			assert.Zero(t, sv.bodies.used.Load(), "bytes are still counted")
		})
	}
}

// TestUnreadBodies: a path that takes no body answers without it, and what
// follows on the connection is never taken for a request.
func TestUnreadBodies(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	small := sv.dial()
	for range 2 { // a short body is skipped, and the connection is kept
		resp, body := small.ask(get("GET /live", "Content-Length: 3"), "abc")
		require.Equal(t, http.StatusOK, resp.StatusCode, body)
	}
	smuggled := get("GET /health")
	for _, raw := range []string{
		get("GET /live", "Content-Length: 20000") + strings.Repeat("x", 20_000-len(smuggled)) + smuggled,
		get("GET /live", "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled),
	} {
		c := sv.dial()
		resp, body := c.ask(raw)
		assert.True(t, resp.StatusCode == http.StatusOK && resp.Close, "status %d, closed %v: %s", resp.StatusCode, resp.Close, body)
		c.ends()
	}
}

// TestBodyBudget: the bodies of all requests share one budget until each
// request has ended. Above it a request is refused by its head, with the name of
// the setting and when to try again.
func TestBodyBudget(t *testing.T) {
	const size = 9 << 16 // of spare memory, which takes no more than the body
	running, release := make(chan int64, 4), make(chan struct{})
	sv := serve(t, loopback(t), func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
		running <- int64(cap(c.Request.Raw))
		<-release
		return answerJSON(ctx, c, out)
	}, func(c *Config) { c.MaxBodyBytes, c.BodyBudgetBytes = size, 2*size+1000 })
	body := goodBody + strings.Repeat(" ", size-len(goodBody))
	var first []*client
	held := int64(0)
	for range 2 {
		c := sv.dial()
		c.send(post(body))
		first = append(first, c)
		held += <-running
	}
	used := sv.bodies.used.Load()
	assert.Equal(t, held, used)
	assert.GreaterOrEqual(t, used, int64(2*size))
	assert.EqualValues(t, held, sv.metric("tandem_frontend_body_bytes"))
	resp, text := sv.ask(strings.TrimSuffix(post(body), body)) // its head alone is enough
	e := wantError(t, resp, text, http.StatusServiceUnavailable, "body_budget_exhausted")
	assert.Contains(t, e["message"], "GOMEMLIMIT")
	assert.NotEmpty(t, resp.Header.Get("Retry-After"))
	// A body that declares no length is refused once it has come too far.
	chunked := get("POST /v1/completions", "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n", size) + body[:size/2]
	sv.refuses(chunked, http.StatusServiceUnavailable, "body_budget_exhausted")
	small := sv.dial() // there is room for a short one
	small.send(post(goodBody))
	<-running
	close(release)
	for _, c := range append(first, small) {
		resp, text := c.receive()
		assert.Equal(t, http.StatusOK, resp.StatusCode, text)
	}
	eventually(t, "the budget is whole again", func() bool { return sv.bodies.used.Load() == 0 })
	sv.serves(post(body))
}

// TestBodiesArriveWhole: bodies of every length and framing come through whole, with a key; without one only short ones are awaited.
func TestBodiesArriveWhole(t *testing.T) {
	calls := make(chan handoff.Call, 1)
	keys := keyFile(t, clientKey)
	sv := serve(t, loopback(t), keeps(calls), func(c *Config) { c.MaxBodyBytes, c.APIKeyFile = 1<<20, keys })
	c := sv.dial()
	for _, size := range []int{len(goodBody), prefetchBytes - 1, prefetchBytes, prefetchBytes + 1, firstBodyBytes, firstBodyBytes + 1,
		300_001, 1 << 20} {
		body := goodBody + strings.Repeat(" ", size-len(goodBody))
		chunks := ""
		for rest := body; rest != ""; {
			n := min(len(rest), 70_000)
			chunks += fmt.Sprintf("%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		for name, raw := range map[string]string{
			"length": post(body, key(clientKey)),
			"chunks": get("POST /v1/completions", key(clientKey), "Transfer-Encoding: chunked") + chunks + "0\r\n\r\n",
			"expect": post(body, key(clientKey), "Expect: 100-continue"),
		} {
			sent := make(chan error, 1)
			go func() { // it may be answered before it has gone whole
				_, err := c.Write([]byte(raw))
				sent <- err
			}()
			call := <-calls
			require.Equal(t, len(body), len(call.Request.Raw), name)
			assert.Equal(t, body, string(call.Request.Raw), name)
			require.NoError(t, <-sent)
			resp, text := c.receive()
			if resp.StatusCode == http.StatusContinue {
				resp, text = c.receive()
			}
			require.Equal(t, http.StatusOK, resp.StatusCode, "%s of %d: %s", name, size, text)
		}
	}
}

// TestBodiesGrowWithinTheBudget: memory of a kept size, where the budget allows it.
func TestBodiesGrowWithinTheBudget(t *testing.T) {
	const size = 33 << 10
	whole := http1.BufSize(size)
	for limit, fits := range map[int]bool{whole: true, whole - 1: false} {
		b, r := &budget{limit: int64(limit)}, new(request)
		require.True(t, b.grow(r, 2<<10))
		r.body.B = append(r.body.B, "begun"...)
		assert.Equal(t, fits, b.grow(r, size), "limit %d", limit)
		assert.True(t, string(r.body.B) == "begun" && (cap(r.body.B) == whole) == fits && b.used.Load() == int64(r.held) &&
			r.held == cap(r.body.B),
			"limit %d: %q in %d bytes, %d counted, %d held", limit, r.body.B, cap(r.body.B), b.used.Load(), r.held)
		b.release(r)
		assert.Zero(t, b.used.Load())
	}
}

// TestBodiesMemoryIsUsedAgain where nobody holds it, and is no other's before. The race detector has pools
// forget some of what they get, so one of many tries has to show it.
func TestBodiesMemoryIsUsedAgain(t *testing.T) {
	var holds atomic.Bool
	calls := make(chan handoff.Call, 1)
	sv := serve(t, loopback(t), func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
		if holds.Load() {
			c.Body.Retain()
		}
		calls <- *c
		return answerJSON(ctx, c, out)
	})
	body := goodBody + strings.Repeat(" ", 50_000)
	c := sv.dial()
	seen := func() *byte {
		c.send(post(body))
		raw := (<-calls).Request.Raw
		resp, text := c.receive()
		require.Equal(t, http.StatusOK, resp.StatusCode, text)
		eventually(t, "it is given back", func() bool { return sv.bodies.used.Load() == 0 })
		return unsafe.SliceData(raw)
	}
	for _, is := range []bool{true, false} {
		holds.Store(is)
		all := map[*byte]bool{}
		for range 50 {
			all[seen()] = true
		}
		assert.Equal(t, is, len(all) == 50, "50 bodies in %d places; others hold them: %v", len(all), is)
	}
}

// TestLongJSONLeavesAsItComes: an answer of several MiB that is not streamed is not held twice, reaches the client as it is, and the
// connection carries the next one. While a client does not read it, the flow waits, and what it has counted stays counted.
func TestLongJSONLeavesAsItComes(t *testing.T) {
	long := []byte(`{"a":"` + strings.Repeat("x", 16<<20) + `"}`)
	for name, loops := range map[string]*http1.Loops{"loop": loops, "goroutine": nil} {
		t.Run(name, func(t *testing.T) {
			sv := serve(t, loopback(t), func(_ context.Context, c *handoff.Call, out handoff.Sink) error {
				if !c.Request.Memory.Take(len(long)) {
					return openai.Internal()
				}
				defer c.Request.Memory.Give(len(long))
				out.Start("application/json")
				return out.Write(long)
			}, func(c *Config) { c.Loops = loops })
			c := sv.dial()
			for range 2 {
				c.send(post(goodBody))
				eventually(t, "the client does not read, and the answer is counted", func() bool { return sv.bodies.used.Load() > int64(len(long)) })
				resp, body := c.receive()
				if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" || body != string(long) {
					t.Fatalf("status %d, %v, %d bytes", resp.StatusCode, resp.Header, len(body))
				}
			}
			eventually(t, "nothing is held", func() bool { return sv.bodies.used.Load() == 0 && sv.live.Len() == 0 })
		})
	}
}
