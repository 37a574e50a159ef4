package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// held is what requests hold of a server; empty for nothing.
func (sv *served) held() string {
	live, conns, used := sv.live.Len(), sv.main.server.Conns.Len(), sv.bodies.used.Load()
	streams := sv.metric("tandem_frontend_open_connections", "streaming")
	if live == 0 && conns == 0 && used == 0 && streams == 0 {
		return ""
	}
	return fmt.Sprintf("%d bytes of bodies, %d calls, %d connections, %v streams", used, live, conns, streams)
}

// one picks one of several.
func one[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// mostly picks usual three times of four, and one of the others else.
func mostly[T any](rng *rand.Rand, usual T, others ...T) T {
	if rng.IntN(4) > 0 {
		return usual
	}
	return one(rng, others...)
}

// exit makes a request that ends in one of the ways that there are, and how much of it is sent.
func exit(rng *rand.Rand) (raw string, cut int) {
	path := mostly(rng, "/v1/completions", "/v1/chat/completions", "/busy_threshold", "/v1/models", "/nowhere", "/live")
	body := mostly(rng, one(rng, goodBody, streamBody), "", "{}", "[1", "\xff\xfe", `{"prompt":"`+"\xc3("+`"}`, strings.Repeat("[", 3000),
		`{"model":"x"}`,
		goodBody+strings.Repeat(" ", 20_000), goodBody+strings.Repeat(" ", 70_000), strings.Repeat(" ", 300_000))
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/%s\r\nHost: t\r\n", mostly(rng, "POST", "PUT", "GET", "BREW"), path, mostly(rng, "1.1", "1.0"))
	b.WriteString("Authorization: Bearer " + mostly(rng, "client-key", "operator-key", "other-key", "") + "\r\n")
	b.WriteString("Content-Type: " + mostly(rng, "application/json", "text/plain") + "\r\n")
	b.WriteString(mostly(rng, "", "Expect: 100-continue\r\n", "Expect: more\r\n", "Connection: Upgrade\r\nUpgrade: h2c\r\n",
		"Content-Encoding: gzip\r\n",
		"X-Dynamo-Request-Priority: x\r\n", " folded: yes\r\n"))
	b.WriteString(mostly(rng, "", "X-Test: panics\r\n", "X-Test: refuses\r\n", "X-Test: waits\r\n", "X-Test: fails\r\n"))
	b.WriteString(one(rng, "", "Connection: close\r\n"))
	if rng.IntN(2) > 0 {
		fmt.Fprintf(&b, "Content-Length: %s\r\n\r\n%s", mostly(rng, fmt.Sprint(len(body)), "0", "x", "67108864", fmt.Sprint(len(body)+1)), body)
	} else {
		b.WriteString("Transfer-Encoding: " + mostly(rng, "chunked", "gzip, chunked") + "\r\n\r\n")
		for rest := body; rest != ""; {
			n := 1 + rng.IntN(min(len(rest), 100_000))
			fmt.Fprintf(&b, "%x%s\r\n%s\r\n", n, mostly(rng, "", ";ext=1"), rest[:n])
			rest = rest[n:]
		}
		b.WriteString(mostly(rng, "0\r\n\r\n", "0\r\nX-Trailer: 1\r\n\r\n", "0\r\nbad trailer\r\n\r\n", "-1\r\n\r\n", "zz\r\n",
			"7fffffffffffffff\r\n", ""))
	}
	return b.String(), mostly(rng, b.Len(), rng.IntN(b.Len()+1))
}

// leaveBy sends one request or several in a row, as rng has them, and leaves at once, soon, or when all is answered.
func (sv *served) leaveBy(rng *rand.Rand) {
	raw := ""
	for range one(rng, 1, 1, 2, 3) {
		more, cut := exit(rng)
		if raw += more[:cut]; cut < len(more) {
			break
		}
	}
	c, err := net.Dial("tcp", sv.ln.Addr().String())
	if err != nil {
		sv.t.Error(err)
		return
	}
	sent := make(chan struct{})
	go func() { // it may be answered before it has come whole
		defer close(sent)
		_, _ = io.WriteString(c, raw)
	}()
	if rng.IntN(3) == 0 {
		<-sent
	} else {
		_ = c.SetReadDeadline(time.Now().Add(one(rng, time.Millisecond, 150*time.Millisecond)))
		_, _ = io.Copy(io.Discard, c)
	}
	c.Close()
	<-sent
}

// TestEveryExitGivesBack: however requests end, on their own or one after the other on a connection, in a loop or on a goroutine,
// nothing is held of them: no byte of the budget, no call, no connection, no stream.
func TestEveryExitGivesBack(t *testing.T) {
	t.Parallel()
	keys, admin := keyFile(t, "client-key"), keyFile(t, "operator-key")
	flow := func(ctx context.Context, c *handoff.Call, out handoff.Sink) error {
		v := ""
		if len(c.Forward) > 0 {
			v = c.Forward[0].Value
		}
		switch {
		case v == "panics":
			panic("on purpose")
		case v == "refuses":
			return openai.BadRequest("prompt", "on purpose")
		case v == "fails":
			out.Start(openai.EventStream)
			_ = out.Write([]byte("data: {}\n\n"))
			return errors.New("on purpose")
		case v == "waits":
			select {
			case <-ctx.Done():
				return fault.ErrClientGone
			case <-time.After(20 * time.Millisecond):
			}
		}
		if m := c.Request.Memory; m.Take(1<<18) && v == "" {
			m.Give(1 << 18) // else the end gives it back
		}
		if c.Request.Stream {
			return answerStream(ctx, c, out)
		}
		return answerJSON(ctx, c, out)
	}
	for name, loops := range map[string]*http1.Loops{"loop": loops, "goroutine": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sv := serve(t, loopback(t), flow, func(c *Config) {
				c.Loops, c.ReadTimeout, c.MaxBodyBytes, c.BodyBudgetBytes = loops, 100*time.Millisecond, 256<<10, 1<<20
				c.ForwardHeaders = []string{"X-Test"}
				c.APIKeyFile, c.AdminKeyFile = keys, admin
			})
			const together, batches = 200, 6
			for batch := range uint64(batches) {
				var all sync.WaitGroup
				for i := range uint64(together) {
					all.Go(func() { sv.leaveBy(rand.New(rand.NewPCG(batch*together+i, 30))) })
				}
				all.Wait()
				eventually(t, fmt.Sprintf("nothing is held after the seeds from %d", batch*together), func() bool { return sv.held() == "" })
			}
			// A busy machine reads many of the 1,200 too late.
			assert.GreaterOrEqual(t, sv.metric("tandem_frontend_http_responses_total", "completions"), 10.0)
		})
	}
}

// TestEmptyChunkedBodiesTakeNothing: as many as would fill the budget leave it as it was.
func TestEmptyChunkedBodiesTakeNothing(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.MaxBodyBytes, c.BodyBudgetBytes = 1<<20, 1<<20 })
	c := sv.dial()
	for range 2*sv.bodies.limit/firstBodyBytes + 1 {
		resp, body := c.ask(get("POST /v1/completions", "Transfer-Encoding: chunked"), "0\r\n\r\n")
		wantError(t, resp, body, 400, "")
	}
	sv.serves(post(goodBody))
}
