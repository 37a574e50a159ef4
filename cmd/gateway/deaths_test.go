package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
)

// allFaults has the tests of deaths run as often as docs/faults.md reports: `make faults`.
const allFaults = "ALL_FAULTS"

// times is how often a test repeats: once in a plain run, all by `make faults`.
func times(all int) int {
	if os.Getenv(allFaults) == "" {
		return 1
	}
	return all
}

// spare is added to limits of time where other tests share the machine's cores: `make faults` alone holds to them.
func spare() time.Duration {
	if os.Getenv(allFaults) == "" {
		return 2 * time.Second
	}
	return 0
}

// reportTo is the document that `make faults` writes its results into, one row a fault.
const reportTo = "../../docs/faults.md"

// report has the row of that fault say what came of it, where all faults run and none failed the test.
func (f *fleet) report(fault, saw, left string, recovery []time.Duration) {
	f.t.Helper()
	p50, p99 := quantile(recovery, .5).Round(time.Millisecond), quantile(recovery, .99).Round(time.Millisecond)
	f.t.Logf("%s: %s; p50 %v, p99 %v", fault, saw, p50, p99)
	if os.Getenv(allFaults) == "" || f.t.Failed() {
		return
	}
	text, err := os.ReadFile(reportTo)
	if err != nil {
		f.t.Fatal(err)
	}
	lines, at := strings.Split(string(text), "\n"), -1
	for i, line := range lines {
		if strings.HasPrefix(line, "| "+fault+" |") {
			at = i
		}
	}
	if at < 0 {
		f.t.Fatalf("%s has no row of %s", reportTo, fault)
	}
	lines[at] = fmt.Sprintf("| %s | %s | %v | %v | 0 | %s |", fault, saw, p50, p99, left)
	if err := os.WriteFile(reportTo, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// order runs `gateway workers` for this fleet.
func (f *fleet) order(words ...string) {
	f.t.Helper()
	status, stdout, stderr := inside(f.t, nil, append(append([]string{"workers"}, words...), "--admin-url", f.url)...)
	if status != exitOK {
		f.t.Fatalf("workers %v: status %d\n%s%s", words, status, stdout, stderr)
	}
}

// books reads what an engine holds for requests; ok is false where it does not answer.
func (f *fleet) books(address string) (b engine.Books, ok bool) {
	res, err := http.Get(address + "/debug/books")
	if err != nil {
		return b, false
	}
	defer res.Body.Close()
	return b, json.NewDecoder(res.Body).Decode(&b) == nil
}

// addresses are the workers', by id.
func (f *fleet) addresses() map[string]string {
	f.t.Helper()
	_, stdout, _ := inside(f.t, nil, "workers", "list", "--json", "--admin-url", f.url)
	var report workersReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		f.t.Fatalf("%v in %s", err, stdout)
	}
	addresses := map[string]string{}
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			if w.LostFor == nil {
				addresses[w.ID] = w.Address
			}
		}
	}
	return addresses
}

// nothingHeld waits until no engine holds a request, nor KV. Where hand-offs are lost their KV may be left: its address
// is lost with them, and its lease ends it.
func (f *fleet) nothingHeld(lost bool) {
	f.t.Helper()
	for id, address := range f.addresses() {
		f.eventually(id+" holds nothing", 10*time.Second, func() bool {
			b, ok := f.books(address)
			if lost {
				for _, p := range b.Pinned {
					b.Blocks.Active = max(0, b.Blocks.Active-p.Blocks) // they may share some
				}
			}
			return ok && b.Idle()
		})
	}
}

// restarted waits for the row that dev prints of a worker's next process, and until the gateway chooses it again.
func (f *fleet) restarted(id string) {
	f.t.Helper()
	f.eventually(id+" has a new process", 20*time.Second, func() bool {
		for line := range strings.Lines(f.later.String()) {
			var name, role string
			var pid int
			if n, _ := fmt.Sscan(line, &name, &role, &pid); n == 3 && name == id && pid != f.pids[id] && !gone(pid) {
				f.pids[id] = pid
				return true
			}
		}
		return false
	})
	f.eventually(id+" is up", 20*time.Second, func() bool { return slices.Contains([]string{"up", "draining"}, f.state(id)) })
}

// prompts are n different ones of some blocks each.
func prompts(name string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s %d. %s", name, i, strings.Repeat("The quick brown fox jumps over the lazy dog. ", 8)))
	}
	return all
}

// quantile is the value below which the share q of them lies.
func quantile(of []time.Duration, q float64) time.Duration {
	slices.Sort(of)
	return of[min(len(of)-1, int(q*float64(len(of))))]
}

// atOnce is how many streams one death meets: as many as may be tried again at once, so that none waits for its turn.
const atOnce = 10

// kill -9 on the decode worker of every stream in mid-answer: each goes on on another one, token for token.
func TestDecodeKilledInMidStream(t *testing.T) {
	var gaps, cached []time.Duration
	var f *fleet
	for round := range times(10) { // each with a fleet of its own: a worker that dies often is started again later and later
		f = startFleet(t, "--prefill", "2", "--decode", "2")
		asked := prompts(fmt.Sprint("Round ", round), atOnce)
		f.streams(asked, 4, 0, nil)
		for _, a := range f.streams(asked, 4, 0, nil) { // the prompts are cached now
			cached = append(cached, a.ttft)
		}
		f.order("cordon", "decode-2")
		for _, a := range f.streams(asked, 200, 20, func() {
			f.order("uncordon", "decode-2")
			if err := syscall.Kill(f.pids["decode-1"], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}) {
			gaps = append(gaps, a.gap)
		}
		f.restarted("decode-1")
		f.nothingHeld(false)
		f.stop()
	}
	p50, p99, ttft := quantile(gaps, .5), quantile(gaps, .99), quantile(cached, .5)
	f.report("decode killed in mid-answer", fmt.Sprintf("%d of %[1]d streams exact; TTFT of their cached prompts %v", len(gaps), ttft.Round(time.Millisecond)), "none", gaps)
	if p50 > ttft+50*time.Millisecond+spare() || p99 > time.Second+spare() {
		t.Errorf("the gap's p50 may be %v and its p99 1s", ttft+50*time.Millisecond)
	}
}

// A frozen worker keeps its connections and says nothing: its streams are moved within the limit for silence. When it
// wakes, it finds their connections closed and forgets them.
func TestDecodeFrozenInMidStream(t *testing.T) {
	f := startFleet(t, "--prefill", "1", "--decode", "2", "--lease-ttl", "60s")
	f.order("cordon", "decode-2")
	answers := f.streams(prompts("Frozen", atOnce), 200, 20, func() {
		f.order("uncordon", "decode-2")
		if err := syscall.Kill(f.pids["decode-1"], syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	})
	if err := syscall.Kill(f.pids["decode-1"], syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f.nothingHeld(false)
	var gaps []time.Duration
	for _, a := range answers {
		gaps = append(gaps, a.gap)
	}
	longest := quantile(gaps, 1)
	f.report("decode frozen in mid-answer", fmt.Sprintf("%d of %[1]d streams exact", len(gaps)), "none", gaps)
	if least := 10 * time.Second; longest < least-time.Second || longest > least+2*time.Second+spare() {
		t.Errorf("the longest gap is %v: the automatic limit is %v", longest, least)
	}
	f.stop()
}

// Every worker of 2P2D is drained and restarted, one after the other, under 20 requests a second.
func TestRollingRestartOfProcesses(t *testing.T) {
	f := startFleet(t, "--prefill", "2", "--decode", "2")
	ctx, enough := context.WithCancel(t.Context())
	var guard sync.Mutex
	var gaps []time.Duration // the longest of each answer
	var group sync.WaitGroup
	defer group.Wait()
	defer enough()
	group.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			group.Go(func() {
				prompt, n := prompts(fmt.Sprint("Rolling ", i), 1)[0], 20+i%80
				s := f.stream(t.Context(), prompt, n, func() {})
				if wrong := s.wrong(prompt, n); wrong != "" {
					t.Errorf("request %d: %s", i, wrong)
				}
				guard.Lock()
				gaps = append(gaps, s.gap)
				guard.Unlock()
			})
		}
	})
	for range times(3) {
		for _, id := range []string{"prefill-1", "prefill-2", "decode-1", "decode-2"} {
			f.order("drain", id, "--move")
			if err := syscall.Kill(f.pids[id], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			f.restarted(id)
			f.order("uncordon", id)
		}
	}
	enough()
	group.Wait()
	f.nothingHeld(false)
	f.report("every worker drained and restarted", fmt.Sprintf("%d of %[1]d streams exact", len(gaps)), "none", gaps)
	f.stop()
}

// A prefill worker that is killed, a hand-off that is lost, and both at once, cost no answer.
func TestPrefillKilledAndHandOffLost(t *testing.T) {
	scenario := filepath.Join(t.TempDir(), "lost.yaml")
	if err := os.WriteFile(scenario, []byte("seed: 3\nrules:\n  - fault: lost_handoff\n    probability: 0.3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lost := []string{"--allow-faults", "--fault-scenario", scenario}
	for _, c := range []struct {
		name string
		args []string
		kill bool
	}{{"prefill killed", nil, true}, {"hand-off lost", lost, false}, {"prefill killed, hand-off lost", lost, true}} {
		t.Run(c.name, func(t *testing.T) {
			var guard sync.Mutex
			var ttfts []time.Duration
			var f *fleet
			for round := range times(10) {
				f = startFleet(t, append([]string{"--prefill", "2", "--decode", "2"}, c.args...)...)
				var begun sync.Once
				begin := make(chan struct{})
				var group sync.WaitGroup
				for i, prompt := range prompts(fmt.Sprint(c.name, round), atOnce) {
					group.Go(func() {
						s := f.stream(t.Context(), prompt, 30, func() { begun.Do(func() { close(begin) }) })
						if wrong := s.wrong(prompt, 30); wrong != "" {
							t.Errorf("request %d: %s", i, wrong)
						}
						guard.Lock()
						ttfts = append(ttfts, s.ttft)
						guard.Unlock()
					})
				}
				<-begin // the other prompts are in prefill, or on their way to decode
				if c.kill {
					if err := syscall.Kill(f.pids["prefill-1"], syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
				group.Wait()
				if c.kill {
					f.restarted("prefill-1")
				}
				f.nothingHeld(c.args != nil)
				f.stop()
			}
			left := "none"
			if c.args != nil {
				left = "that of lost hand-offs, until its lease ends"
			}
			f.report(c.name, fmt.Sprintf("%d of %[1]d streams exact", len(ttfts)), left, ttfts)
		})
	}
}

// leave is how long it may take until both engines have forgotten clients that left.
const leave = 20 * time.Millisecond

// Fifty clients leave at once: the books of both workers' processes are zero within 20 ms.
func TestClientsLeaveRealWorkers(t *testing.T) {
	const clients = 50
	f := startFleet(t, "--prefill", "1", "--decode", "1")
	addresses := f.addresses()
	var took []time.Duration
	for round := range times(10) {
		ctx, gone := context.WithCancel(t.Context())
		var there atomic.Int32
		var group sync.WaitGroup
		for _, prompt := range prompts(fmt.Sprint("Leave ", round), clients) {
			group.Go(func() {
				var once sync.Once
				if s := f.stream(ctx, prompt, 2000, func() { once.Do(func() { there.Add(1) }) }); !errors.Is(s.err, context.Canceled) {
					t.Errorf("a client that left got %v", s.err)
				}
			})
		}
		f.eventually("every stream has begun", 30*time.Second, func() bool { return there.Load() == clients })
		left := time.Now()
		gone()
		for id, address := range addresses {
			for {
				if b, ok := f.books(address); ok && b.Idle() {
					break
				}
				if time.Since(left) > 5*time.Second {
					t.Fatalf("%s still holds requests", id)
				}
				<-time.After(time.Millisecond)
			}
		}
		took = append(took, time.Since(left))
		group.Wait()
	}
	if p99 := quantile(took, .99); p99 > leave+spare() {
		t.Errorf("the books were zero after %v, the limit is %v", p99, leave)
	}
	f.report("clients leave", "nothing: 50 of them leave at once", "none", took)
	f.stop()
}
