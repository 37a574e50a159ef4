package problems

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/replica"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// site is a model with so many workers of each role, all well.
func site(prefill, decode int) *Facts {
	f := &Facts{Now: noon, Fallback: true, Models: []Model{{Name: "m"}}}
	for role, n := range map[pools.Role]int{pools.Prefill: prefill, pools.Decode: decode} {
		p := Pool{Model: "m", Role: role, Desired: n}
		for i := range n {
			w := Worker{Process: "1", Context: 4096}
			w.ID, w.State, w.Circuit, w.PrefillRate, w.ITL = fmt.Sprintf("%s-%d", role, i+1), "up", fault.Closed, 1000, .01
			w.MaxNumSeqs, w.TotalBlocks, w.Ranks = 8, 100, 1
			p.Workers = append(p.Workers, w)
		}
		f.Pools = append(f.Pools, p)
	}
	return f
}

func (f *Facts) pool(role pools.Role) *Pool {
	for i := range f.Pools {
		if f.Pools[i].Role == role {
			return &f.Pools[i]
		}
	}
	return nil
}

// all sets the state of all workers of a role.
func (f *Facts) all(role pools.Role, state string) {
	p := f.pool(role)
	for i := range p.Workers {
		p.Workers[i].State = state
	}
}

// refuse has the model's queue be full.
func (f *Facts) refuse(classes ...queue.ClassStats) {
	f.Queues = map[string]queue.Stats{"m": {
		Waiting: 10, Oldest: 8 * time.Second, RefusedTotal: 60, ExpiredTotal: 10, GrantedTotal: 30, Classes: classes,
	}}
	f.Models[0].TTFT, f.Models[0].Ended = 9*time.Second, 100
}

// inWords is the problems in one line each: kind, severity, what it follows from.
func inWords(all []Problem) string {
	var lines []string
	for _, p := range all {
		line := string(p.Kind) + " " + string(p.Severity)
		if p.Because != "" {
			line += " <- " + string(p.Because)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, ", ")
}

// Causes come first, and what follows from them names them. A cause is as urgent as what follows.
func TestCausesComeFirst(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *Facts)
		want   string
		reason string // in the first one
	}{
		"nothing": {func(*Facts) {}, "", ""},
		"the prefill pool is dead and the queue refuses": {func(f *Facts) {
			f.all("prefill", "lost")
			f.refuse()
		}, "pool_dead critical, pool_limit critical <- pool_dead, first_token_slow warning <- pool_dead",
			"no prefill worker serves: prefill-1 is lost, prefill-2 is lost; decode workers compute prompts meanwhile"},
		"the prefill pool is dead": {func(f *Facts) { f.all("prefill", "down") }, "pool_dead warning", ""},
		"the prefill pool is dead, without fallback": {func(f *Facts) {
			f.all("prefill", "lost")
			f.Fallback = false
		}, "pool_dead critical", "no prefill worker serves: prefill-1 is lost, prefill-2 is lost"},
		"prefill is the limit": {func(f *Facts) {
			p := f.pool("prefill")
			p.Workers[1].State, p.Workers[0].PrefillTokens, p.Desired = "draining", 36_000, 3
			f.refuse()
		}, "pool_limit critical, first_token_slow warning <- pool_limit, too_few_workers info <- pool_limit",
			"prefill is the bottleneck: 36k tokens booked on 1 of 2 workers, 10 requests wait, 70 % are refused; 2 more workers would do"},
		"one of two workers is lost and prefill is the limit": {func(f *Facts) {
			p := f.pool("prefill")
			p.Workers[1].State, p.Workers[0].PrefillTokens, p.Desired = "lost", 36_000, 3
			f.refuse()
		}, "worker_lost critical, pool_limit critical <- worker_lost, first_token_slow warning <- worker_lost, " +
			"too_few_workers info <- worker_lost", "1 of 2 prefill workers do not respond: prefill-2"},
		"a slow worker and a slow first token": {func(f *Facts) {
			w := &f.pool("prefill").Workers[1]
			w.Outlier, w.PrefillSpeed = fault.SlowPrefill, .15
			f.Models[0].TTFT, f.Models[0].Ended = 9*time.Second, 100
		}, "worker_slow warning, first_token_slow warning <- worker_slow",
			"1 of 2 prefill workers are slower than the others at the same load: prefill-2, at 15 % of their speed"},
		"calls to a worker fail": {func(f *Facts) { f.pool("decode").Workers[0].Outlier = fault.FailingCalls }, "circuit_open warning",
			"1 of 2 decode workers fail calls: decode-1"},
		"NATS is lost": {func(f *Facts) {
			f.NATS, f.CutOff = "the connection is down", true
			f.Peers = []replica.Peer{{Name: "b", State: "unreachable", Age: 3 * time.Second}}
			for i := range f.pool("decode").Workers {
				f.pool("decode").Workers[i].Events = "silent"
			}
		}, "nats_lost warning, kv_events_lost warning <- nats_lost, peer_missing warning <- nats_lost", "NATS cannot be reached"},
		"etcd is lost, with all workers": {func(f *Facts) { f.Etcd, f.Pools, f.Models = "no answer", nil, nil },
			"etcd_lost critical, no_workers critical <- etcd_lost", ""},
		"one class floods": {func(f *Facts) {
			f.refuse(queue.ClassStats{Name: "batch", Waiting: 9, RefusedTotal: 70}, queue.ClassStats{Name: "chat", Waiting: 1})
			f.Models[0].Failed = 70
			f.pool("prefill").Workers[0].PrefillTokens = 30_000
		}, "class_overload critical, pool_limit critical <- class_overload, requests_fail critical <- class_overload, " +
			"first_token_slow warning <- class_overload",
			"the policy class batch makes up 100 % of what waits or is refused: 10 requests wait, 70 % are refused"},
		"both classes are refused": {func(f *Facts) {
			f.refuse(queue.ClassStats{Name: "batch", Waiting: 9, RefusedTotal: 40}, queue.ClassStats{Name: "chat", Waiting: 1, RefusedTotal: 30})
		}, "pool_limit critical, first_token_slow warning <- pool_limit", ""},
		"the caches are full": {func(f *Facts) {
			f.refuse()
			f.Models[0].Failed = 70
			for i := range f.pool("decode").Workers {
				f.pool("decode").Workers[i].ActiveBlocks = 97
			}
		}, "kv_full critical, requests_fail critical <- kv_full, first_token_slow warning <- kv_full",
			"97 % of the KV blocks booked on 2 of 2 workers, 10 requests wait, 70 % are refused"},
		"a flapping worker that is lost now": {func(f *Facts) {
			w := &f.pool("decode").Workers[0]
			w.returns, w.State = 3, "lost"
		}, "worker_flapping warning", "1 of 2 decode workers come and go: decode-1, back 3 times in 10 min"},
		"decode has left, both serves": {func(f *Facts) {
			f.pool("decode").Workers, f.pool("prefill").Role = nil, "both"
		}, "", ""},
		"workers of role both are named without it": {func(f *Facts) {
			f.Pools = f.Pools[:1]
			p := &f.Pools[0]
			p.Role, p.Workers[0].State, p.Desired = pools.Both, "lost", 3
		}, "worker_lost warning, too_few_workers info <- worker_lost", "1 of 2 workers do not respond: "},
		"decode has left": {func(f *Facts) { f.pool("decode").Workers = nil }, "pool_dead critical", "no decode worker serves: all have left"},
		"a certificate": {func(f *Facts) { f.Certificates = map[string]time.Time{"clients": noon.Add(50 * time.Hour)} },
			"certificate_ends warning", "the certificate for clients ends in 2 days"},
		"a certificate's last day": {func(f *Facts) { f.Certificates = map[string]time.Time{"clients": noon.Add(5 * time.Hour)} },
			"certificate_ends critical", "ends in 5 h"},
		"two certificates are one problem, in one order": {func(f *Facts) {
			f.Certificates = map[string]time.Time{"workers": noon.Add(-time.Hour), "clients": noon.Add(50 * time.Hour), "nats": noon.Add(8 * day)}
		}, "certificate_ends critical", "the certificate for clients ends in 2 days, the certificate for workers has ended"},
		"no worker of a role bounds its requests": {func(f *Facts) {
			f.refuse()
			for i := range f.pool("decode").Workers {
				f.pool("decode").Workers[i].MaxNumSeqs, f.pool("decode").Workers[i].Requests = 0, 10
			}
			f.pool("prefill").Workers[0].PrefillTokens = 36_000
		}, "pool_limit critical, first_token_slow warning <- pool_limit", "prefill is the bottleneck: 36k tokens"},
		"another template at one worker": {func(f *Facts) {
			f.Models[0].Trust.Disagreeing, f.Models[0].Trust.Distrusted = []string{"prefill-2"}, true
		}, "worker_disagrees warning, tokenizer_distrusted warning <- worker_disagrees", "prefill-2 made other tokens of a chat"},
		"another context at one worker": {func(f *Facts) { f.pool("decode").Workers[1].Context = 2048 },
			"worker_disagrees warning", "1 of 2 decode workers have another context than most: decode-2, 2048 tokens instead of 4096"},
		"one of three has a longer context": {func(f *Facts) {
			p := f.pool("decode")
			p.Workers = append(p.Workers, p.Workers[0])
			p.Workers[2].ID, p.Workers[2].Context = "liar", 1<<30
		}, "worker_disagrees warning", "liar, 1073741824 tokens"},
		"few first tokens are slow": {func(f *Facts) { f.Models[0].TTFT, f.Models[0].Ended = time.Minute, 19 }, "", ""},
		"requests fail": {func(f *Facts) {
			f.Models[0].Ended, f.Models[0].Failed, f.RetriesRefused = 100, 10, 3
		}, "requests_fail critical, retries_refused warning <- requests_fail", "10 of the last 100 requests failed or were refused"},
	} {
		t.Run(name, func(t *testing.T) {
			f := site(2, 2)
			c.change(f)
			all := Find(f)
			assert.Equal(t, c.want, inWords(all))
			if c.reason != "" && len(all) > 0 {
				assert.Contains(t, all[0].Reason, c.reason)
			}
			for _, p := range all {
				assert.NotEmpty(t, p.Remedy)
				assert.True(t, strings.HasSuffix(p.Help, "/"+string(p.Kind)+".md"), p.Help)
			}
		})
	}
}

// One of 128 workers is not why a pool refuses requests.
func TestFewWorkersAreNoCause(t *testing.T) {
	f := site(128, 8)
	f.pool("prefill").Workers[77].State = "lost"
	f.refuse()
	assert.Equal(t, "pool_limit critical, worker_lost warning, first_token_slow warning <- pool_limit", inWords(Find(f)))
}

// days plays facts second by second and returns the problems of the last.
type days struct {
	Tracker
	f *Facts
}

func (d *days) pass(t time.Duration, change func(f *Facts)) (all []Problem) {
	for range int(t / time.Second) {
		d.f.Now = d.f.Now.Add(time.Second)
		if change != nil {
			change(d.f)
		}
		all = d.Update(d.f)
	}
	return all
}

// A problem keeps its age as long as it lasts, also if it is away for a moment.
func TestAges(t *testing.T) {
	d := days{f: site(2, 2)}
	assert.Empty(t, d.pass(10*time.Second, nil))
	d.f.all("prefill", "lost")
	all := d.pass(time.Second, nil)
	began := d.f.Now
	assert.Equal(t, began, all[0].Since)
	d.f.all("prefill", "up")
	assert.Empty(t, d.pass(5*time.Second, nil))
	d.f.all("prefill", "lost")
	assert.Equal(t, began, d.pass(5*time.Second, nil)[0].Since, "away for five seconds")
	d.f.all("prefill", "up")
	d.pass(2*time.Minute, nil)
	d.f.all("prefill", "lost")
	assert.Equal(t, d.f.Now.Add(time.Second), d.pass(time.Second, nil)[0].Since, "another time")
}

// A worker that comes back three times in ten minutes flaps, whether its process is a new one or not. One that stays
// dead while it is probed does not.
func TestFlapping(t *testing.T) {
	for name, flap := range map[string]func(w *Worker, n int){
		"it restarts":    func(w *Worker, n int) { w.Process = fmt.Sprint(n) },
		"it is lost":     func(w *Worker, n int) { w.State = [...]string{"up", "lost"}[n%2] },
		"its calls fail": func(w *Worker, n int) { w.Circuit = [...]fault.State{fault.Closed, fault.Open}[n%2] },
	} {
		t.Run(name, func(t *testing.T) {
			d := days{f: site(2, 2)}
			d.pass(time.Minute, nil)
			n, all := 0, []Problem(nil)
			for len(all) == 0 || all[0].Kind != WorkerFlapping {
				if n++; n > 6 {
					t.Fatal("never flapping")
				}
				all = d.pass(20*time.Second, func(f *Facts) { flap(&f.pool("decode").Workers[0], n) })
			}
			assert.Equal(t, []string{"decode-1"}, all[0].Workers)
			assert.Empty(t, d.pass(11*time.Minute, func(f *Facts) { flap(&f.pool("decode").Workers[0], 2) }), "later")
		})
	}
	d := days{f: site(2, 2)}
	d.pass(time.Minute, nil)
	n := 0
	all := d.pass(time.Minute, func(f *Facts) {
		n++
		f.pool("decode").Workers[0].Circuit = [...]fault.State{fault.Open, fault.HalfOpen}[n%2]
	})
	assert.Equal(t, "circuit_open warning", inWords(all))
}

// A rollout that slows a pool down is the cause, under the same names or others; one that does not, or other hardware,
// is none.
func TestRollouts(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *Worker)
		want   string
	}{
		"restarted, half as fast":     {func(w *Worker) { w.Process, w.PrefillRate = "2", 500 }, "rollout_slow warning"},
		"restarted, nearly as fast":   {func(w *Worker) { w.Process, w.PrefillRate = "2", 800 }, ""},
		"replaced, half as fast":      {func(w *Worker) { w.ID, w.Process, w.PrefillRate = "new-"+w.ID, "2", 500 }, "rollout_slow warning"},
		"not restarted, half as fast": {func(w *Worker) { w.PrefillRate = 500 }, ""},
		"other hardware":              {func(w *Worker) { w.ID, w.Process, w.PrefillRate, w.DeviceClass = "new-"+w.ID, "2", 500, "small" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := days{f: site(4, 2)}
			d.pass(10*time.Minute, nil)
			for i := range d.f.pool("prefill").Workers {
				c.change(&d.f.pool("prefill").Workers[i])
			}
			all := d.pass(2*time.Second, nil)
			assert.Equal(t, c.want, inWords(all))
			if c.want != "" {
				assert.Contains(t, all[0].Reason, "4 of 4 prefill workers have restarted and are slower than before: ")
				assert.Contains(t, all[0].Reason, " and 1 more, at 50 % of the speed")
				assert.Empty(t, d.pass(61*time.Minute, nil), "an hour later it is usual")
			}
		})
	}
}

// Refusals count for half a minute.
func TestRefusalsOfLate(t *testing.T) {
	d := days{f: site(2, 2)}
	total := func(refused, granted uint64) {
		d.f.Queues = map[string]queue.Stats{"m": {RefusedTotal: refused, GrantedTotal: granted}}
	}
	total(1000, 1000)
	assert.Empty(t, d.pass(time.Second, nil), "refusals of before the first look")
	total(1003, 1001)
	all := d.pass(time.Second, nil)
	assert.Equal(t, "pool_limit critical", inWords(all))
	assert.Contains(t, all[0].Reason, "75 % are refused")
	assert.NotEmpty(t, d.pass(29*time.Second, nil))
	assert.Empty(t, d.pass(2*time.Second, nil))
}

func BenchmarkUpdate(b *testing.B) {
	d := days{f: site(64, 64)}
	d.f.pool("prefill").Workers[3].Outlier = fault.SlowPrefill
	for b.Loop() {
		d.pass(time.Second, nil)
	}
}

// Each kind and each alert has a page, with its meaning, what to check and the remedy, in few words; no page is
// of anything else.
func TestRunbooks(t *testing.T) {
	docs := "../../../docs/runbooks/"
	pages := map[string]string{"README": ""} // their remedies
	for _, k := range Kinds() {
		pages[string(k.Kind)] = strings.TrimSuffix(k.Remedy, ".")
		assert.Equal(t, HelpURL+string(k.Kind)+".md", k.Help)
	}
	rules, err := os.ReadFile("../../../deploy/grafana/alerts.yaml")
	require.NoError(t, err)
	urls := regexp.MustCompile(`runbook_url: (.*)`).FindAllStringSubmatch(string(rules), -1)
	require.NotEmpty(t, urls)
	for _, m := range urls {
		page, under := strings.CutPrefix(m[1], HelpURL)
		require.True(t, under, m[1])
		if page != "{{ $labels.kind }}.md" {
			pages[strings.TrimSuffix(page, ".md")] = ""
		}
	}
	there, err := filepath.Glob(docs + "*.md")
	require.NoError(t, err)
	assert.Len(t, there, len(pages), "pages")
	delete(pages, "README")
	for name, remedy := range pages {
		raw, err := os.ReadFile(docs + name + ".md")
		require.NoError(t, err)
		words := strings.Fields(string(raw))
		text := strings.Join(words, " ")
		assert.LessOrEqual(t, len(words), 120, "%s: words", name)
		for _, part := range []string{"**Means:**", "**Check:**", "**Remedy:** " + remedy} {
			assert.Contains(t, text, part, name)
		}
	}
}
