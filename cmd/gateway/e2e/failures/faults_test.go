package failures

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// A dead prefill worker costs nobody an answer, and is out of the choice at its
// first refused connection; with none left decode prefills for itself.
func TestPrefillWorkersDie(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{})
		want := fleet.Expected(fleet.TextPrompt(fleet.Long), 6)
		body := strings.Replace(fleet.Ask(fleet.Long, 6), `"ignore_eos":true,`, "", 1)
		f.Workers["prefill-1"].Kill()
		for range 6 {
			a := f.Post(fleet.CompletionPath, body)
			if p, _ := f.Served(a); p != "prefill-2" || f.Text(a) != want {
				t.Fatalf("served by %q: %q", p, f.Text(a))
			}
		}
		if n := strings.Count(f.Logs.String(), "class=refused"); n > 1 {
			t.Errorf("the dead worker was tried %d times", n)
		}
		f.Workers["prefill-2"].Kill()
		for range 3 {
			a := f.Post(fleet.CompletionPath, body)
			if p, _ := f.Served(a); p != "" || f.Text(a) != want {
				t.Fatalf("served by %q: %q", p, f.Text(a))
			}
		}
		if got := f.Status("/health"); got != http.StatusOK {
			t.Errorf("/health is %d while decode stands in", got)
		}
		f.Idle()
	})
}

// A prefill worker that dies takes the KV of many requests with it, of more than the retry budget has places for: they wait
// for one, and each gets its answer.
func TestPrefillDiesWithStagedKV(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const clients = 60
		f := fleet.New(t, fleet.Options{Worker: func(c *devfleet.WorkerConfig) { c.Engine.BandwidthBytesPerSecond = 4e6 }})
		answers := make([]fleet.Answer, clients)
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				q := fleet.IthQuestion(i)
				answers[i] = f.Post(q.Path, q.Body)
			})
		}
		var dies *fleet.Worker
		f.Eventually("KV of many requests lies at one prefill worker", func() bool {
			for _, id := range []string{"prefill-1", "prefill-2"} {
				if w := f.Workers[id]; len(w.Engine.Books().Pinned) > 14 { // the budget has places for 12 of 60
					dies = w
				}
			}
			return dies != nil
		})
		dies.Kill()
		group.Wait()
		for i, a := range answers {
			if whole, err := f.Verdict(fleet.IthQuestion(i), a); err != nil || !whole {
				t.Errorf("request %d: whole %v, %v, status %d %s", i, whole, err, a.Status, a.Body)
			}
		}
		f.Idle()
	})
}

func TestDecodeFallbackOff(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) { c.Flow.DecodeFallback = false }})
	f.Workers["prefill-1"].Kill()
	f.Workers["prefill-2"].Kill()
	a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
	f.Refused(a, http.StatusServiceUnavailable, "no_worker", "")
	if got := f.Status("/health"); got != http.StatusServiceUnavailable {
		t.Errorf("/health is %d", got)
	}
	f.Idle()
}

// A decode worker that dies before the first byte is replaced, with the KV that
// is already staged where it never saw the request.
func TestDecodeWorkersDie(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{})
		f.Workers["decode-1"].Kill()
		for range 6 {
			if _, d := f.Served(f.Exact(fleet.Long, 4)); d != "decode-2" {
				t.Fatalf("served by %q", d)
			}
		}
		f.Workers["decode-2"].Kill()
		a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
		if e := f.Parse(a.Body).Error; a.Status != http.StatusServiceUnavailable || e == nil || e.Code == nil {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		f.Eventually("the bookings are zero", func() bool {
			return !strings.Contains(f.Books(), "booked")
		})
	})
}

// A prefill worker that accepts and answers nothing is left after prefill-timeout, and decode prefills.
func TestSilentPrefillWorker(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const limit = time.Second
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Gateway: func(c *stack.GatewayConfig) { c.Prefill.Timeout = limit }})
		silent := fleet.Listen(t, 0)
		defer silent.Close()
		record := f.Workers["prefill-1"].Record()
		f.Gateway.Roster.Remove("prefill-1")
		record.ID, record.Address = "silent-1", "http://"+silent.Addr().String()
		f.Put(record)
		start := time.Now()
		a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
		if p, d := f.Served(a); p != "" || d != "decode-1" {
			t.Errorf("served by %q and %q", p, d)
		}
		if took := time.Since(start); took < limit || took > limit+300*time.Millisecond {
			t.Errorf("took %v, of which prefill may have %v", took, limit)
		}
		if !strings.Contains(f.Logs.String(), "class=timeout") {
			t.Error("no timeout in the log")
		}
		f.Idle()
	})
}

// Clients that leave all at once free both workers, wherever their requests are.
func TestClientsLeave(t *testing.T) {
	for _, c := range []struct {
		phase   string
		options fleet.Options
		prompt  string
		there   func(f *fleet.Fleet) bool // every request has come to the phase
	}{
		{
			// Slow engines: a prefill that ends in the moment its client leaves hands over nothing by which
			// it could be released, and its blocks stay for the engine's lease.
			"queueing", fleet.Options{Speedup: .05, Worker: func(c *devfleet.WorkerConfig) { c.Engine.MaxNumSeqs = 1 }}, strings.Repeat(fleet.Long, 10),
			func(f *fleet.Fleet) bool {
				return f.Gateway.Flow.Waiting()["tandem-sim"].Waiting >= fleet.Clients-2
			},
		},
		{
			"prefill", fleet.Options{Speedup: .005}, strings.Repeat(fleet.Long, 10),
			func(f *fleet.Fleet) bool { return f.Engines("prefill") == fleet.Clients },
		},
		{
			"prefill at decode", fleet.Options{Both: 2, Speedup: .005}, strings.Repeat(fleet.Long, 10),
			func(f *fleet.Fleet) bool { return f.Engines("both") == fleet.Clients },
		},
		{
			"transfer", fleet.Options{Speedup: 1, Worker: func(c *devfleet.WorkerConfig) { c.Engine.TransferSetup = fleet.Transfers / fleet.Clients }}, fleet.Long,
			func(f *fleet.Fleet) bool { return f.Transferring() > fleet.Clients/2 },
		},
		{
			"streaming", fleet.Options{Speedup: 1}, fleet.Long,
			func(f *fleet.Fleet) bool { return f.Started() >= fleet.Clients },
		},
	} {
		fleet.VirtualRun(t, c.phase, func(t *testing.T) {
			fleet.LeaveAtOnce(t, fleet.New(t, c.options), c.phase, c.prompt, c.there)
		})
	}
}
