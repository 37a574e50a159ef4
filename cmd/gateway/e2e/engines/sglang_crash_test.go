package engines

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// The port of an SGLang that has crashed accepts connections for 5 s and answers nothing; its KV events end at once. From then on no
// request is sent there, so that none is lost.
func TestCrashedSGLangGetsNoRequests(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const silence = 20 * time.Second // in place of 5 s, which a busy machine may need for the rest
		f := sglangFleet(t, 2, 1, func(c *devfleet.WorkerConfig) { c.Engine.CrashSilence = silence }, nil)
		began, crashed := time.Now(), f.Workers["prefill-1"].Record()
		var gone sync.WaitGroup
		gone.Go(func() { // an id that SGLang does not check; the gateway does
			res, err := f.HTTP().Post(crashed.Address+fleet.CompletionPath, "application/json", strings.NewReader(
				fmt.Sprintf(`{"model":"tandem-sim","prompt":[5,%d],"max_tokens":4,"bootstrap_host":"127.0.0.1","bootstrap_room":7}`, tokens.Sim().VocabSize())))
			if err == nil {
				res.Body.Close()
				t.Errorf("the engine that is to crash answers %d", res.StatusCode)
			}
		})
		f.Eventually("it takes no requests", func() bool {
			m, known := f.Gateway.Roster.Snapshot(crashed.Model, pools.Prefill).Member("prefill-1")
			return !known || !m.Eligible(time.Now())
		})
		for i := range 20 {
			f.Good(fleet.CompletionPath, fleet.Ask(fmt.Sprintf("%d %s", i, fleet.Long), 4))
		}
		if took := time.Since(began); took > silence/2 {
			t.Errorf("took %v: the port was closed before anything was noticed, or requests waited for it", took)
		}
		if got := f.Metric(`tandem_frontend_suspected_poison_total`); got != "0" {
			t.Errorf("suspected poison: %s", got)
		}
		f.Workers["prefill-1"].Kill()
		gone.Wait()
		f.Idle()
	})
}
