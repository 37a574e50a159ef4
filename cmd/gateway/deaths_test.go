package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// reportTo is the document that `make faults` writes its results into, one row a fault.
const reportTo = "../../docs/faults.md"

// report has the row of that fault say what came of it, where it is to be written and nothing failed.
func (f *proc) report(fault, saw string, recovery []time.Duration) {
	f.t.Helper()
	p50, p99 := quantile(recovery, .5).Round(time.Millisecond), quantile(recovery, .99).Round(time.Millisecond)
	f.t.Logf("%s: %s; p50 %v, p99 %v", fault, saw, p50, p99)
	if !*fleet.Update || f.t.Failed() {
		return
	}
	text, err := os.ReadFile(reportTo)
	require.NoError(f.t, err)
	row := regexp.MustCompile(`(?m)^\| ` + fault + ` \|.*$`)
	require.True(f.t, row.Match(text), "%s has no row of %s", reportTo, fault)
	text = row.ReplaceAll(text, fmt.Appendf(nil, "| %s | %s | %v | %v |", fault, saw, p50, p99))
	require.NoError(f.t, os.WriteFile(reportTo, text, 0o600))
}

// books reads what an engine holds for requests; ok is false where it does not answer.
func books(address string) (b engine.Books, ok bool) {
	_, body := get(address + "/debug/books")
	return b, json.Unmarshal([]byte(body), &b) == nil
}

// nothingHeld waits until no engine holds a request, nor KV. Where hand-offs are lost their KV may be left: its address
// is lost with them, and its lease ends it.
func (p *proc) nothingHeld(lost bool) {
	p.t.Helper()
	for id, w := range p.rows() {
		if w.LostFor != nil {
			continue
		}
		p.eventually(id+" holds nothing", func() bool {
			b, ok := books(w.Address)
			if lost {
				for _, pinned := range b.Pinned {
					b.Blocks.Active = max(0, b.Blocks.Active-pinned.Blocks) // they may share some
				}
			}
			return ok && b.Idle()
		})
	}
}

// restarted waits for the row that dev prints of a worker's next process, and until the gateway chooses it again.
func (p *proc) restarted(id string) {
	p.t.Helper()
	old := p.pids[id]
	p.eventually(id+" has a new process", func() bool { p.read(""); return p.pids[id] != old && !gone(p.pids[id]) })
	p.eventually(id+" is up", func() bool { return slices.Contains([]string{"up", "draining"}, p.state(id)) })
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

// breakDecode sends a signal to the decode worker of ten streams in mid-answer: each must continue on the other one, token for token.
func (p *proc) breakDecode(name string, tokens int, by syscall.Signal) []streamed {
	p.t.Helper()
	p.order("cordon", "decode-2")
	return p.streams(prompts(name, atOnce), tokens, 10, func() {
		p.order("uncordon", "decode-2")
		p.signal("decode-1", by)
	})
}

// BenchmarkFaults breaks real processes again and again and measures how long that is felt: `make faults` writes docs/faults.md with it,
// and holds it to limits of time.
func BenchmarkFaults(b *testing.B) {
	const rounds = 10
	b.Run("decode killed", func(b *testing.B) { decodeKilled(b, rounds) })
	for name, c := range map[string]struct{ kill, lose bool }{
		"prefill killed": {true, false}, "hand-off lost": {false, true}, "prefill killed, hand-off lost": {true, true},
	} {
		b.Run(name, func(b *testing.B) { prefillBreaks(b, name, rounds, c.kill, c.lose) })
	}
}

func decodeKilled(b *testing.B, rounds int) {
	var silent, cached []time.Duration
	var f *proc
	for round := range rounds { // each with a fleet of its own: a worker that dies often is started again later and later
		f = startFleet(b, "--prefill", "2", "--decode", "2")
		name := fmt.Sprint("Round ", round)
		f.streams(prompts(name, atOnce), 4, 0, nil)
		for _, a := range f.streams(prompts(name, atOnce), 4, 0, nil) { // the prompts are cached now
			cached = append(cached, a.ttft)
		}
		for _, a := range f.breakDecode(name, 100, syscall.SIGKILL) {
			silent = append(silent, a.gap)
		}
		f.restarted("decode-1")
		f.nothingHeld(false)
		f.stop()
	}
	p50, p99, ttft := quantile(silent, .5), quantile(silent, .99), quantile(cached, .5)
	assert.True(b, !*fleet.Update || p50 <= ttft+50*time.Millisecond && p99 <= time.Second,
		"the gap's p50 may be %v and its p99 1s", ttft+50*time.Millisecond)
	f.report("decode killed in mid-answer", fmt.Sprintf("%d of %[1]d streams exact; TTFT of their cached prompts %v", len(silent),
		ttft.Round(time.Millisecond)), silent)
}

// prefillBreaks kills a prefill worker under streams, loses three hand-offs of ten, or both: no answer is lost.
func prefillBreaks(b *testing.B, name string, rounds int, kill, lose bool) {
	args := []string{"--prefill", "2", "--decode", "2"}
	if lose {
		args = append(args, "--fault-scenario", written(b, "lost.yaml", "seed: 3\nrules:\n  - fault: lost_handoff\n    probability: 0.3\n"))
	}
	var ttfts []time.Duration
	var f *proc
	for round := range rounds {
		f = startFleet(b, args...)
		kills := sync.OnceFunc(func() { // the other prompts are in prefill, or on their way to decode
			if kill {
				f.signal("prefill-1", syscall.SIGKILL)
			}
		})
		answers := make([]streamed, atOnce)
		var group sync.WaitGroup
		for i, prompt := range prompts(fmt.Sprint(name, round), atOnce) {
			group.Go(func() {
				answers[i] = f.stream(b.Context(), prompt, 30, kills)
				assert.Empty(b, answers[i].wrong(), "request %d", i)
			})
		}
		group.Wait()
		for _, s := range answers {
			ttfts = append(ttfts, s.ttft)
		}
		if kill {
			f.restarted("prefill-1")
		}
		f.nothingHeld(lose)
		f.stop()
	}
	f.report(name, fmt.Sprintf("%d of %[1]d streams exact", len(ttfts)), ttfts)
}
