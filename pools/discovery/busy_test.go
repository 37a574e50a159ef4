package discovery

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// A worker whose HTTP server is too busy to answer stays in while it generates, and goes once it does not. A port that is closed, or an
// answer that it is not well, counts whatever came before.
func TestAWorkerThatGeneratesIsWell(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"it generates nothing more", "it is not well", "its port is closed"} {
		s := newStock(t, vllm("m"))
		var busy, generates atomic.Bool
		var asked atomic.Int32
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if busy.Load() {
				<-r.Context().Done()
				return
			}
			s.answer(w, r)
		}))
		t.Cleanup(front.Close)
		generates.Store(true)
		r, _, _ := prober(t, ProberConfig{Every: 20 * time.Millisecond, Timeout: 200 * time.Millisecond, Failures: 1, Latest: func(string) time.Time {
			if generates.Load() {
				return time.Now()
			}
			return time.Time{}
		}}, "both "+front.URL+",id=w1,model=m")
		first := member(t, r, "the worker", func(w *pools.Worker) bool { return w.BlockSize == 32 })
		busy.Store(true)
		before := asked.Load()
		within(t, "asked on", func() bool { return asked.Load() > before+1 })
		if now := member(t, r, "the busy worker", anyWorker); now.Incarnation != first.Incarnation {
			t.Error("it is another process")
		}
		switch end {
		case "it is not well":
			s.set(func(s *stock) { s.ill = http.StatusServiceUnavailable })
			busy.Store(false)
		case "its port is closed":
			front.Listener.Close()
			front.CloseClientConnections()
		default:
			generates.Store(false)
		}
		within(t, end, func() bool { _, in := r.Lookup("w1"); return !in && len(r.View().Lost()) == 1 })
	}
}
