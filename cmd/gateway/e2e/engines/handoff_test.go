package engines

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// A pair may differ in block size: each pool is asked, and booked, in its own
// blocks, and a conversation is found where it was computed.
func TestPairOfDifferentBlockSizes(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 2, Worker: func(c *devfleet.WorkerConfig) {
		if c.Engine.Role == string(pools.Decode) {
			c.Engine.BlockSize = 64
		}
	}})
	prompt := strings.Repeat(fleet.Long, 20)
	ids := fleet.TextPrompt(prompt)
	ask := func() fleet.Answer {
		return f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":8,"prompt":"`+prompt+`","nvext":{"extra_fields":["worker_id","routing"]}}`)
	}
	first := ask()
	if first.Status != http.StatusOK || f.Text(first) != fleet.Expected(ids, 8) {
		t.Fatalf("%d %s", first.Status, first.Body)
	}
	served := f.Parse(first.Body).Nvext.WorkerID
	f.Idle()
	f.Eventually("the prompt is known", func() bool {
		for _, pool := range f.Gateway.Fleet.Report() {
			for _, w := range pool.Workers {
				size := map[pools.Role]int{pools.Prefill: 16, pools.Decode: 64}[pool.Role]
				if (w.ID == served.Prefill || w.ID == served.Decode) && w.CachedBlocks < len(ids)/size {
					return false
				}
			}
		}
		return true
	})
	again := ask()
	if got := f.Parse(again.Body).Nvext.WorkerID; got.Prefill != served.Prefill {
		t.Errorf("it went to %s, and is on %s", got.Prefill, served.Prefill)
	}
	if want := fmt.Sprintf(`"predicted_cached_tokens":%d`, len(ids)/16*16); !strings.Contains(string(again.Body), want) {
		t.Errorf("want %s in %s", want, again.Body)
	}
	f.Idle()
}
