package failures

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/decode"
)

// A client that takes nothing for far longer than a stream may be idle gets its
// whole answer in the end: that it holds the engine up is not the engine's
// silence.
func TestSlowClientIsNoSilentWorker(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const idle, tokens = 500 * time.Millisecond, 30_000
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
			c.Decode = decode.Config{StreamIdleTimeout: idle}
			c.Edge.Heartbeat = 0
		}})
		conn, err := fleet.Dial(t, strings.TrimPrefix(f.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		body := fleet.Ask("hello", tokens)
		if _, err := conn.Write(fleet.Sized(body)); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		// The engine is held up when it has generated for a while and generates no
		// more, though it is not done.
		held := func() string {
			b := f.Workers["decode-1"].Engine.Books()
			return fmt.Sprint(b.Running, b.Waiting, f.Books())
		}
		for last, since := held(), time.Now(); time.Since(since) < 3*idle; {
			<-time.After(idle / 50)
			if now := held(); now != last {
				last, since = now, time.Now()
			}
		}
		if f.Books() == "" {
			t.Fatal("the answer was over before it was read: nobody was held up")
		}
		all, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		var events []string
		for line := range strings.Lines(string(all)) {
			if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok {
				events = append(events, data)
			}
		}
		if n := len(events); n == 0 || events[n-1] != "[DONE]" {
			t.Fatalf("%d events, the last %q", n, events[max(0, n-1):])
		}
		if got := f.Text(fleet.Answer{Events: events}); got != fleet.Answered("hello", tokens) {
			t.Errorf("%d bytes of text are not the undisturbed answer", len(got))
		}
		f.Idle()
	})
}
