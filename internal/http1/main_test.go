package http1

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// relayed is who keeps connections that are real sockets: the tests are the same for both.
var relayed = flag.String("relay", "goroutine", "loop or goroutine: who keeps the connections")

// newHTTP makes a transport with -relay's loops.
func newHTTP(cfg ClientConfig) *Client {
	if *relayed == "loop" {
		cfg.Loops = NewLoops()
	}
	return NewClient(cfg)
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// fasthttp's server has two goroutines that end in their own time, or never.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
	)
}
