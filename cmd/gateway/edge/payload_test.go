package edge

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/handoff"
)

// TestDeclaredBodiesTakeNoMemory: memory follows what has arrived of a body,
// however much its head, or a chunk, declares.
func TestDeclaredBodiesTakeNoMemory(t *testing.T) {
	const clients = 40
	for name, c := range map[string]struct {
		head   string
		sent   int
		status int
	}{
		"declared":        {"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 67108864\r\n\r\n", 110, 408},
		"declared, begun": {"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 67108864\r\n\r\n", 20_000, 408},
		"declared, more":  {"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 67108864\r\n\r\n", 100_000, 408},
		"one chunk":       {"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3ffffff\r\n", 110, 408},
		"no body taken":   {"GET /live HTTP/1.1\r\nHost: t\r\nContent-Length: 67108864\r\n\r\n", 110, 200},
		"no route":        {"POST /nowhere HTTP/1.1\r\nHost: t\r\nContent-Length: 67108864\r\n\r\n", 110, 408},
	} {
		t.Run(name, func(t *testing.T) {
			sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.ReadTimeout = 300 * time.Millisecond })
			warm := sv.dial()
			warm.send(post(goodBody))
			warm.receive()
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
			if each := (after.TotalAlloc - before.TotalAlloc) / clients; each > limit {
				t.Errorf("%d bytes allocated a connection that sent %d, want at most %d", each, c.sent, limit)
			}
			if used := sv.bodies.used.Load(); used != 0 {
				t.Errorf("%d bytes are still counted", used)
			}
		})
	}
}

// TestBodiesNobodyTakes: a path that takes no body answers without it, and what
// follows on the connection is never taken for a request.
func TestBodiesNobodyTakes(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	small := sv.dial()
	for range 2 { // a short body is skipped, and the connection goes on
		small.send("GET /live HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc")
		if resp, body := small.receive(); resp.StatusCode != http.StatusOK {
			t.Fatalf("status %d: %s", resp.StatusCode, body)
		}
	}
	smuggled := "GET /health HTTP/1.1\r\nHost: t\r\n\r\n"
	for name, raw := range map[string]string{
		"long":    fmt.Sprintf("GET /live HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s%s", 20_000, strings.Repeat("x", 20_000-len(smuggled)), smuggled),
		"chunked": fmt.Sprintf("GET /live HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled),
	} {
		c := sv.dial()
		c.send(raw)
		if resp, body := c.receive(); resp.StatusCode != http.StatusOK || !resp.Close {
			t.Errorf("%s: status %d, closed %v: %s", name, resp.StatusCode, resp.Close, body)
		}
		_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
		c.closed()
	}
}

// TestBodyBudget: the bodies of all requests share one budget until each
// request has ended. Above it a request is refused by its head, with the name of
// the setting and when to try again.
func TestBodyBudget(t *testing.T) {
	const size = 600_000
	running, release := make(chan int64, 4), make(chan struct{})
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
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
	if used := sv.bodies.used.Load(); used != held || used < 2*size {
		t.Errorf("%d bytes are counted while bodies of %d are held", used, held)
	}
	if got := sv.metric("tandem_frontend_body_bytes"); got != float64(held) {
		t.Errorf("tandem_frontend_body_bytes is %v, want %d", got, held)
	}
	refused := sv.dial()
	refused.send(strings.TrimSuffix(post(body), body)) // its head alone is enough
	resp, text := refused.receive()
	e := wantError(t, resp, text, http.StatusServiceUnavailable, "body_budget_exhausted")
	if !strings.Contains(e["message"].(string), "body-budget-bytes") || resp.Header.Get("Retry-After") == "" {
		t.Errorf("message %q, Retry-After %q", e["message"], resp.Header.Get("Retry-After"))
	}
	// A body that declares no length is refused once it has come too far.
	chunked := sv.dial()
	chunked.send("POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", fmt.Sprintf("%x\r\n", size), body[:size/2])
	resp, text = chunked.receive()
	wantError(t, resp, text, http.StatusServiceUnavailable, "body_budget_exhausted")
	chunked.Close()
	small := sv.dial() // there is room for a short one
	small.send(post(goodBody))
	<-running
	close(release)
	for _, c := range append(first, small) {
		if resp, text := c.receive(); resp.StatusCode != http.StatusOK {
			t.Errorf("status %d: %s", resp.StatusCode, text)
		}
	}
	eventually(t, "the budget is whole again", func() bool { return sv.bodies.used.Load() == 0 })
	again := sv.dial()
	again.send(post(body))
	if resp, text := again.receive(); resp.StatusCode != http.StatusOK {
		t.Errorf("status %d: %s", resp.StatusCode, text)
	}
}

// TestBodiesArriveWhole: bodies of every length and framing come through whole.
func TestBodiesArriveWhole(t *testing.T) {
	got := make(chan string, 1)
	sv := serve(t, loopback(t), func(ctx context.Context, c handoff.Call, out handoff.Sink) error {
		got <- string(c.Request.Raw)
		return answerJSON(ctx, c, out)
	}, func(c *Config) { c.MaxBodyBytes = 1 << 20 })
	c := sv.dial()
	for _, size := range []int{len(goodBody), prefetchBytes - 1, prefetchBytes, prefetchBytes + 1, firstBodyBytes, firstBodyBytes + 1, 300_001, 1 << 20} {
		body := goodBody + strings.Repeat(" ", size-len(goodBody))
		chunks := ""
		for rest := body; rest != ""; {
			n := min(len(rest), 70_000)
			chunks += fmt.Sprintf("%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		for name, raw := range map[string]string{
			"length": post(body),
			"chunks": "POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + "0\r\n\r\n",
			"expect": post(body, "Expect: 100-continue"),
		} {
			sent := make(chan error, 1)
			go func() {
				_, err := c.Write([]byte(raw))
				sent <- err
			}()
			select {
			case raw := <-got:
				if raw != body {
					t.Errorf("%s: %d bytes arrived of %d", name, len(raw), size)
				}
			case err := <-sent:
				if err != nil {
					t.Fatal(err)
				}
				if raw := <-got; raw != body {
					t.Errorf("%s: %d bytes arrived of %d", name, len(raw), size)
				}
			}
			for resp, text := c.receive(); ; resp, text = c.receive() {
				if resp.StatusCode == http.StatusContinue {
					continue
				}
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%s of %d: status %d: %s", name, size, resp.StatusCode, text)
				}
				break
			}
		}
	}
}
