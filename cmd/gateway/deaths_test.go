package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
)

// reportTo is the document that `make faults` writes its results into, one row a fault.
const reportTo = "../../docs/faults.md"

// report has the row of that fault say what came of it, where it is to be written and nothing failed.
func (f *fleet) report(fault, saw, left string, recovery []time.Duration) {
	f.t.Helper()
	p50, p99 := quantile(recovery, .5).Round(time.Millisecond), quantile(recovery, .99).Round(time.Millisecond)
	f.t.Logf("%s: %s; p50 %v, p99 %v", fault, saw, p50, p99)
	if !*update || f.t.Failed() {
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
		f.eventually(id+" holds nothing", time.Minute, func() bool {
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
	f.eventually(id+" has a new process", time.Minute, func() bool {
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
	f.eventually(id+" is up", time.Minute, func() bool { return slices.Contains([]string{"up", "draining"}, f.state(id)) })
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

// breakDecode sends a signal to the decode worker of ten streams in mid-answer: each has to go on on the other one, token for token.
func (f *fleet) breakDecode(name string, by syscall.Signal) []streamed {
	f.t.Helper()
	f.order("cordon", "decode-2")
	return f.streams(prompts(name, atOnce), 100, 10, func() {
		f.order("uncordon", "decode-2")
		f.signal("decode-1", by)
	})
}

// signal sends one to a worker's process.
func (f *fleet) signal(id string, s syscall.Signal) {
	f.t.Helper()
	if err := syscall.Kill(f.pids[id], s); err != nil {
		f.t.Fatal(err)
	}
}

// gaps are the longest silences of answers.
func gaps(answers []streamed) (all []time.Duration) {
	for _, a := range answers {
		all = append(all, a.gap)
	}
	return all
}

// TestDecodeBreaksInMidStream freezes a decode worker with streams, and kills it with others. A frozen one keeps its connections and
// sends nothing: its streams move at the limit for silence. When it wakes, it finds their connections closed and forgets them.
func TestDecodeBreaksInMidStream(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--prefill", "1", "--decode", "2", "--lease-ttl", "60s", "--stream-idle-timeout", "2s")
	f.breakDecode("Frozen", syscall.SIGSTOP)
	f.signal("decode-1", syscall.SIGCONT)
	f.nothingHeld(false)
	f.eventually("decode-1 is up", time.Minute, func() bool { return f.state("decode-1") == "up" })
	f.breakDecode("Killed", syscall.SIGKILL)
	f.restarted("decode-1")
	f.nothingHeld(false)
	f.stop()
}

// BenchmarkFaults breaks real processes again and again and measures how long that is felt: `make faults` writes docs/faults.md with it,
// and holds it to limits of time.
func BenchmarkFaults(b *testing.B) {
	const rounds = 10
	b.Run("decode killed", func(b *testing.B) { decodeKilled(b, rounds) })
	b.Run("decode frozen", decodeFrozen)
	b.Run("rolling restart", rollingRestart)
	for name, c := range map[string]struct{ kill, lose bool }{
		"prefill killed": {true, false}, "hand-off lost": {false, true}, "prefill killed, hand-off lost": {true, true},
	} {
		b.Run(name, func(b *testing.B) { prefillBreaks(b, name, rounds, c.kill, c.lose) })
	}
	b.Run("clients leave", func(b *testing.B) { clientsLeave(b, rounds) })
}

func decodeKilled(b *testing.B, rounds int) {
	var silent, cached []time.Duration
	var f *fleet
	for round := range rounds { // each with a fleet of its own: a worker that dies often is started again later and later
		f = startFleet(b, "--prefill", "2", "--decode", "2")
		name := fmt.Sprint("Round ", round)
		f.streams(prompts(name, atOnce), 4, 0, nil)
		for _, a := range f.streams(prompts(name, atOnce), 4, 0, nil) { // the prompts are cached now
			cached = append(cached, a.ttft)
		}
		silent = append(silent, gaps(f.breakDecode(name, syscall.SIGKILL))...)
		f.restarted("decode-1")
		f.nothingHeld(false)
		f.stop()
	}
	p50, p99, ttft := quantile(silent, .5), quantile(silent, .99), quantile(cached, .5)
	if *update && (p50 > ttft+50*time.Millisecond || p99 > time.Second) {
		b.Errorf("the gap's p50 may be %v and its p99 1s", ttft+50*time.Millisecond)
	}
	f.report("decode killed in mid-answer", fmt.Sprintf("%d of %[1]d streams exact; TTFT of their cached prompts %v", len(silent), ttft.Round(time.Millisecond)), "none", silent)
}

func decodeFrozen(b *testing.B) {
	f := startFleet(b, "--prefill", "1", "--decode", "2", "--lease-ttl", "60s")
	silent := gaps(f.breakDecode("Frozen", syscall.SIGSTOP))
	f.signal("decode-1", syscall.SIGCONT)
	f.nothingHeld(false)
	if longest, limit := quantile(silent, 1), 10*time.Second; *update && (longest < limit-time.Second || longest > limit+2*time.Second) {
		b.Errorf("the longest gap is %v: the automatic limit is %v", longest, limit)
	}
	f.report("decode frozen in mid-answer", fmt.Sprintf("%d of %[1]d streams exact", len(silent)), "none", silent)
	f.stop()
}

// rollingRestart drains and restarts every worker of 2P2D, one after the other, under 20 requests a second.
func rollingRestart(b *testing.B) {
	f := startFleet(b, "--prefill", "2", "--decode", "2")
	ctx, enough := context.WithCancel(b.Context())
	var guard sync.Mutex
	var answers []streamed
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
				s := f.stream(b.Context(), prompt, n, func() {})
				if wrong := s.wrong(prompt, n); wrong != "" {
					b.Errorf("request %d: %s", i, wrong)
				}
				guard.Lock()
				answers = append(answers, s)
				guard.Unlock()
			})
		}
	})
	for range 3 {
		for _, id := range []string{"prefill-1", "prefill-2", "decode-1", "decode-2"} {
			f.order("drain", id, "--move")
			f.signal(id, syscall.SIGKILL)
			f.restarted(id)
			f.order("uncordon", id)
		}
	}
	enough()
	group.Wait()
	f.nothingHeld(false)
	f.report("every worker drained and restarted", fmt.Sprintf("%d of %[1]d streams exact", len(answers)), "none", gaps(answers))
	f.stop()
}

// prefillBreaks kills a prefill worker under streams, loses three hand-offs of ten, or both: no answer is lost.
func prefillBreaks(b *testing.B, name string, rounds int, kill, lose bool) {
	args, left := []string{"--prefill", "2", "--decode", "2"}, "none"
	if lose {
		args = append(args, "--allow-faults", "--fault-scenario", written(b, "lost.yaml", "seed: 3\nrules:\n  - fault: lost_handoff\n    probability: 0.3\n"))
		left = "that of lost hand-offs, until its lease ends"
	}
	var ttfts []time.Duration
	var f *fleet
	for round := range rounds {
		f = startFleet(b, args...)
		var begun sync.Once
		var guard sync.Mutex
		var group sync.WaitGroup
		for i, prompt := range prompts(fmt.Sprint(name, round), atOnce) {
			group.Go(func() {
				s := f.stream(b.Context(), prompt, 30, func() {
					begun.Do(func() { // the other prompts are in prefill, or on their way to decode
						if kill {
							f.signal("prefill-1", syscall.SIGKILL)
						}
					})
				})
				if wrong := s.wrong(prompt, 30); wrong != "" {
					b.Errorf("request %d: %s", i, wrong)
				}
				guard.Lock()
				ttfts = append(ttfts, s.ttft)
				guard.Unlock()
			})
		}
		group.Wait()
		if kill {
			f.restarted("prefill-1")
		}
		f.nothingHeld(lose)
		f.stop()
	}
	f.report(name, fmt.Sprintf("%d of %[1]d streams exact", len(ttfts)), left, ttfts)
}

// clientsLeave has fifty clients leave at once: the books of both workers' processes are zero within 20 ms.
func clientsLeave(b *testing.B, rounds int) {
	const clients, leave = 50, 20 * time.Millisecond
	f := startFleet(b, "--prefill", "1", "--decode", "1")
	addresses := f.addresses()
	var took []time.Duration
	for round := range rounds {
		ctx, gone := context.WithCancel(b.Context())
		var there atomic.Int32
		var group sync.WaitGroup
		for _, prompt := range prompts(fmt.Sprint("Leave ", round), clients) {
			group.Go(func() {
				var once sync.Once
				if s := f.stream(ctx, prompt, 2000, func() { once.Do(func() { there.Add(1) }) }); !errors.Is(s.err, context.Canceled) {
					b.Errorf("a client that left got %v", s.err)
				}
			})
		}
		f.eventually("every stream has begun", time.Minute, func() bool { return there.Load() == clients })
		left := time.Now()
		gone()
		for id, address := range addresses {
			f.eventually(id+" holds nothing", 5*time.Second, func() bool {
				books, ok := f.books(address)
				return ok && books.Idle()
			})
		}
		took = append(took, time.Since(left))
		group.Wait()
	}
	if p99 := quantile(took, .99); *update && p99 > leave {
		b.Errorf("the books were zero after %v, the limit is %v", p99, leave)
	}
	f.report("clients leave", "nothing: 50 of them leave at once", "none", took)
	f.stop()
}
