package failures

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// liar stands before a worker and passes on what the worker says of itself; calls for inference are answered by infer.
type liar struct {
	*httptest.Server
	looks, calls atomic.Int64 // at its health; for inference
}

func newLiar(t *testing.T, port int, infer http.HandlerFunc) *liar {
	l := &liar{}
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	pass.Transport = fleet.Client(t).Transport
	l.Server = fleet.ServeHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			l.looks.Add(1)
			pass.ServeHTTP(w, r)
			return
		}
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"`+stack.SimModel+`"`) { // else it is a release
			l.calls.Add(1)
		}
		infer(w, r)
	})
	return l
}

// A worker whose health is fine and whose every call fails costs no answer, and three or four calls: its circuit opens, and what
// it goes on saying of its health does not close it.
func TestWorkersThatLieAboutTheirHealth(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, infer := range map[string]http.HandlerFunc{
		"hangs": hang,
		"fails": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"hangs after the head": func(w http.ResponseWriter, r *http.Request) {
			fleet.SSE(w)
			_ = http.NewResponseController(w).Flush()
			hang(w, r)
		},
		"cuts": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			fleet.VirtualRun(t, fmt.Sprint(role, " ", name), func(t *testing.T) {
				cfg := fleet.GatewayConfig()
				cfg.Prefill.Timeout, cfg.Decode.FirstTokenTimeout = 300*time.Millisecond, 300*time.Millisecond
				cfg.Breakers.OpenFor = time.Hour
				var lies *liar
				f, _ := fleet.NewByURL(t, cfg, func(id string, port int) string {
					if id == string(role)+"-1" {
						lies = newLiar(t, port, infer)
						return lies.URL
					}
					return fmt.Sprintf("http://127.0.0.1:%d", port)
				})
				id := string(role) + "-1"
				before, _ := f.Gateway.Roster.Lookup(id)
				round := func(n string) {
					t.Helper()
					for i := range 10 {
						a := f.Exact(fmt.Sprint(n, i, fleet.Long), 6)
						if p, d := f.Served(a); p != "prefill-2" && role == pools.Prefill || d != "decode-2" && role == pools.Decode {
							t.Errorf("request %d was served by %q and %q", i, p, d)
						}
					}
				}
				round("first")
				looked := lies.looks.Load()
				f.Eventually("its health is looked at many times more, and everything else again", func() bool { return lies.looks.Load() > looked+20 })
				round("second")
				calls := int64(3)
				if name == "fails" && role == pools.Decode {
					calls = 4 // two in each request, which count when the other worker has answered
				}
				if n := lies.calls.Load(); n != calls || f.Circuits()[id] != fault.Open {
					t.Errorf("it was called %d times; circuits %v", n, f.Circuits())
				}
				after, in := f.Gateway.Roster.Lookup(id)
				if !in || after.Worker.Incarnation != before.Worker.Incarnation {
					t.Errorf("it is in the roster: %v, as the same process: %v", in, after.Worker.Incarnation == before.Worker.Incarnation)
				}
				f.Idle()
			})
		}
	}
}
