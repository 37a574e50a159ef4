package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

func ask(prompt string, tokens int) string {
	return fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"stream":true,"nvext":{"extra_fields":["worker_id"]},"prompt":%q}`, tokens, prompt)
}

// served reads who served a streamed answer.
func (f *fleet) served(a answer) (prefill, decode string) {
	f.t.Helper()
	if len(a.events) < 2 {
		f.t.Fatalf("status %d, events %q, body %s", a.status, a.events, a.body)
	}
	c := f.parse([]byte(a.events[len(a.events)-2]))
	if c.Nvext == nil {
		f.t.Fatalf("no nvext in %q", a.events)
	}
	return c.Nvext.WorkerID.Prefill, c.Nvext.WorkerID.Decode
}

// A dead prefill worker costs nobody an answer, and is out of the choice at its
// first refused connection; with none left decode prefills for itself.
func TestPrefillWorkersDie(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{})
		want := expected(textPrompt(long), 6)
		body := strings.Replace(ask(long, 6), `"ignore_eos":true,`, "", 1)
		f.workers["prefill-1"].kill()
		for range 6 {
			a := f.post(completionPath, body)
			if p, _ := f.served(a); p != "prefill-2" || f.text(a) != want {
				t.Fatalf("served by %q: %q", p, f.text(a))
			}
		}
		if n := strings.Count(f.logs.String(), "class=refused"); n > 1 {
			t.Errorf("the dead worker was tried %d times", n)
		}
		f.workers["prefill-2"].kill()
		for range 3 {
			a := f.post(completionPath, body)
			if p, _ := f.served(a); p != "" || f.text(a) != want {
				t.Fatalf("served by %q: %q", p, f.text(a))
			}
		}
		if got := f.status("/health"); got != http.StatusOK {
			t.Errorf("/health is %d while decode stands in", got)
		}
		f.idle()
	})
}

// A prefill worker that dies takes the KV of many requests with it, of more than the retry budget has places for: they wait
// for one, and each gets its answer.
func TestPrefillDiesWithStagedKV(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const clients = 60
		f := newFleet(t, options{worker: func(c *devfleet.WorkerConfig) { c.Engine.BandwidthBytesPerSecond = 4e6 }})
		answers := make([]answer, clients)
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				q := ithQuestion(i)
				answers[i] = f.post(q.path, q.body)
			})
		}
		var dies *worker
		f.eventually("KV of many requests lies at one prefill worker", func() bool {
			for _, id := range []string{"prefill-1", "prefill-2"} {
				if w := f.workers[id]; len(w.Engine.Books().Pinned) > 14 { // the budget has places for 12 of 60
					dies = w
				}
			}
			return dies != nil
		})
		dies.kill()
		group.Wait()
		for i, a := range answers {
			if whole, err := f.verdict(ithQuestion(i), a); err != nil || !whole {
				t.Errorf("request %d: whole %v, %v, status %d %s", i, whole, err, a.status, a.body)
			}
		}
		f.idle()
	})
}

func TestDecodeFallbackOff(t *testing.T) {
	f := newFleet(t, options{gateway: func(c *stack.GatewayConfig) { c.Flow.DecodeFallback = false }})
	f.workers["prefill-1"].kill()
	f.workers["prefill-2"].kill()
	a := f.post(completionPath, ask(long, 4))
	if e := f.parse(a.body).Error; a.status != http.StatusServiceUnavailable || e == nil || *e.Code != "no_worker" {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if got := f.status("/health"); got != http.StatusServiceUnavailable {
		t.Errorf("/health is %d", got)
	}
	f.idle()
}

// A decode worker that dies before the first byte is replaced, with the KV that
// is already staged where it never saw the request.
func TestDecodeWorkersDie(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{})
		f.workers["decode-1"].kill()
		for range 6 {
			a := f.post(completionPath, ask(long, 4))
			if _, d := f.served(a); d != "decode-2" {
				t.Fatalf("served by %q", d)
			}
		}
		f.workers["decode-2"].kill()
		a := f.post(completionPath, ask(long, 4))
		if e := f.parse(a.body).Error; a.status != http.StatusServiceUnavailable || e == nil || e.Code == nil {
			t.Errorf("status %d: %s", a.status, a.body)
		}
		f.eventually("the bookings are zero", func() bool {
			return !strings.Contains(f.books(), "booked")
		})
	})
}

// A prefill worker that accepts and says nothing is left after prefill-timeout.
func TestSilentPrefillWorker(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{prefill: 1, decode: 1, gateway: func(c *stack.GatewayConfig) { c.Prefill.Timeout = 50 * time.Millisecond }})
		silent := listen(t, 0)
		defer silent.Close()
		record := f.workers["prefill-1"].Record()
		f.gateway.Roster.Remove("prefill-1")
		record.ID, record.Address = "silent-1", "http://"+silent.Addr().String()
		if err := f.gateway.Roster.Put(record); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		a := f.post(completionPath, ask(long, 4))
		if p, d := f.served(a); p != "" || d != "decode-1" {
			t.Errorf("served by %q and %q", p, d)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if !strings.Contains(f.logs.String(), "class=timeout") {
			t.Error("no timeout in the log")
		}
		f.idle()
	})
}

// A prefill that takes longer than nearly all before it is asked of a second worker, whose answer counts; what the first holds
// is freed.
func TestSlowPrefillIsHedged(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{prefill: 2, decode: 1, gateway: func(c *stack.GatewayConfig) { c.Prefill.Hedge = 90 }})
		for i := range 80 {
			f.post(completionPath, ask(fmt.Sprint(i, long), 2))
		}
		silent := listen(t, 0)
		defer silent.Close()
		record := f.workers["prefill-2"].Record()
		record.Address = "http://" + silent.Addr().String()
		if err := f.gateway.Roster.Put(record); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for i := range 20 {
			prompt := fmt.Sprint("again", i, long)
			a := f.post(completionPath, ask(prompt, 4))
			if p, _ := f.served(a); p != "prefill-1" || f.text(a) != generated(textPrompt(prompt), 4, false) {
				t.Fatalf("served by %q: %q", p, f.text(a))
			}
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("20 requests took %v", took)
		}
		if logs := f.logs.String(); strings.Contains(logs, "leg failed") || strings.Contains(logs, "attempts=2") {
			t.Error("a hedge is no failure")
		}
		f.idle()
	})
}

// Clients that leave all at once free both workers, wherever their requests
// are: the engines' own books are zero within 20 ms for 99 of 100.
func TestClientsLeave(t *testing.T) {
	for _, c := range []struct {
		phase   string
		options options
		prompt  string
		there   func(f *fleet) bool // every request has come to the phase
	}{
		{
			// Slow engines: a prefill that ends in the moment its client leaves hands over nothing by which
			// it could be released, and its blocks stay for the engine's lease.
			"queueing", options{speedup: .05, worker: func(c *devfleet.WorkerConfig) { c.Engine.MaxNumSeqs = 1 }}, strings.Repeat(long, 10),
			func(f *fleet) bool { return f.gateway.Flow.Waiting()["tandem-sim"].Waiting >= clients-2 },
		},
		{
			"prefill", options{speedup: .005}, strings.Repeat(long, 10),
			func(f *fleet) bool { return f.engines("prefill") == clients },
		},
		{
			"transfer", options{speedup: 1, worker: func(c *devfleet.WorkerConfig) { c.Engine.TransferSetup = transfers / clients }}, long,
			func(f *fleet) bool { return f.transferring() > clients/2 },
		},
		{
			"streaming", options{speedup: 1}, long,
			func(f *fleet) bool { return f.started() >= clients },
		},
	} {
		virtualRun(t, c.phase, func(t *testing.T) {
			limit := 20 * time.Millisecond
			if c.phase == "transfer" {
				limit += transfers
			}
			if took := leaveAtOnce(t, newFleet(t, c.options), c.phase, c.prompt, c.there); took > limit {
				t.Errorf("books were zero after %v, the limit is %v", took, limit)
			}
		})
	}
}

// transfers is how long the transfers of all clients take, one after another: an engine that has begun one comes to its end.
const transfers = 2500 * time.Millisecond

// clients is how many leave at once.
const clients = 50

// leaveAtOnce has the clients come to a phase and leave, and returns how long
// it took until all but one in a hundred were forgotten everywhere.
func leaveAtOnce(t *testing.T, f *fleet, phase, prompt string, there func(f *fleet) bool) time.Duration {
	t.Helper()
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			_, err := f.try(ctx, completionPath, ask(fmt.Sprintf("%d %s", i, prompt), 2000), func(string) { f.first(i) })
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	f.eventually("every request is in "+phase, func() bool { return there(f) })
	left := time.Now()
	leave()
	for f.held() > clients/100 {
		if time.Since(left) > 15*time.Second {
			t.Fatalf("still held: %s", f.books())
		}
		<-time.After(500 * time.Microsecond)
	}
	took := time.Since(left)
	f.idle()
	group.Wait()
	return took
}

// engines counts the requests that the engines of a role hold.
func (f *fleet) engines(role string) (n int) {
	for id, w := range f.workers {
		if strings.HasPrefix(id, role) {
			n += len(w.Engine.Books().Requests)
		}
	}
	return n
}

// transferring counts the requests that wait for KV.
func (f *fleet) transferring() (n int) {
	for _, w := range f.workers {
		n += w.Engine.Books().Transferring
	}
	return n
}

// held counts the requests that any engine or booking still knows.
func (f *fleet) held() (n int) {
	for _, w := range f.workers {
		b := w.Engine.Books()
		n += len(b.Requests) + len(b.Pinned)
	}
	for _, p := range f.gateway.Fleet.Report() {
		for _, w := range p.Workers {
			n += w.Requests
		}
	}
	return n + f.gateway.Flow.Waiting()["tandem-sim"].Waiting
}

// first notes that client i has got something.
func (f *fleet) first(i int) { f.got.Store(i, true) }

// started counts the clients that have got something.
func (f *fleet) started() (n int) {
	f.got.Range(func(any, any) bool { n++; return true })
	return n
}
