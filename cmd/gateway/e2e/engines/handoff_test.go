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

// A worker serves under all its names, and is asked by its own.
func TestServedNames(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1})
	for _, w := range f.Workers {
		record := w.Record()
		record.ServedNames = []string{"also"}
		if err := f.Gateway.Roster.Put(record); err != nil {
			t.Fatal(err)
		}
	}
	for _, model := range []string{"tandem-sim", "also"} {
		a := f.Post(fleet.CompletionPath, `{"model":"`+model+`","max_tokens":12,"prompt":"`+fleet.Long+`","nvext":{"extra_fields":["worker_id"]}}`)
		if a.Status != http.StatusOK || f.Text(a) != fleet.Expected(fleet.TextPrompt(fleet.Long), 12) || f.Parse(a.Body).Nvext.WorkerID.Prefill == "" {
			t.Errorf("%s: %d %s", model, a.Status, a.Body)
		}
	}
	var list struct{ Data []struct{ ID string } }
	f.Get("/v1/models", &list)
	if len(list.Data) != 2 || list.Data[0].ID != "tandem-sim" || list.Data[1].ID != "also" || f.Status("/v1/models/also") != http.StatusOK {
		t.Errorf("listed: %+v", list.Data)
	}
	f.Idle()
}

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
