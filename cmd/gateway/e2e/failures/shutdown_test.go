package failures

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
)

// handsOver is a prefill worker's answer with a hand-off.
const handsOver = `{"choices":[{"index":0,"text":"x","finish_reason":"length"}],"kv_transfer_params":` +
	`{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600,"remote_block_ids":[[1]]}}`

// A gateway that stops cuts what still runs at the end of its drain, and ends only
// when the KV that was staged for it has been released.
func TestReleasesAreAwaitedPastTheDrain(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		cfg := fleet.GatewayConfig()
		cfg.Drain = 50 * time.Millisecond
		f := fleet.Bare(t, cfg, stack.Links{}, slog.LevelInfo)
		f.URL = fleet.ListenAs(t, f.Gateway)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Gateway.Run(ctx) }()

		decoding, releasing, letGo := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var released atomic.Bool
		fleet.NewEngines(f, pools.Prefill, 1, fleet.Says(handsOver))
		fleet.NewEngines(f, pools.Decode, 1, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.Header.Get("X-Request-Id"), "-release") {
				close(decoding)
				<-r.Context().Done()
				return
			}
			close(releasing)
			<-letGo // an engine that takes its time, well past the drain
			released.Store(true)
			w.WriteHeader(http.StatusNotFound)
		})
		answered := make(chan fleet.Answer, 1)
		go func() {
			a, _ := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(fleet.Long, 4), nil) // cut, or told so
			answered <- a
		}()
		<-decoding
		stop()
		<-releasing
		if a := <-answered; a.Status != 0 && a.Status != http.StatusServiceUnavailable {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		select {
		case err := <-ended:
			t.Errorf("the gateway ended while a release was in flight: %v", err)
			ended <- err
		case <-time.After(4 * cfg.Drain):
		}
		close(letGo)
		if err := <-ended; err != nil || !released.Load() {
			t.Errorf("%v; released: %v", err, released.Load())
		}
		if log := f.Logs.String(); strings.Contains(log, "staged KV not released") {
			t.Errorf("the log says: %s", log)
		}
	})
}
