package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/lab/fleet"
)

var (
	soakFor = flag.Duration("soak", time.Minute,
		"how long BenchmarkSoak puts load on a gateway; with -update it writes docs/soak.svg and the figures in docs/faults.md")
	soakSeed = flag.Uint64("soak-seed", 0, "seed of BenchmarkSoak's faults, prompts and kills; 0 draws one")
)

const (
	soakRate    = 100 // requests a second, whatever the answers take
	soakPrompts = 120 // different ones
)

// soakRules are the shapes in which the soak injects a fault; one that is not here is injected without parameters.
var soakRules = map[string][]string{
	"delay":          {"delay: 100ms"},
	"endless_tokens": {"after_events: 6"},
	"garble":         {"", "after_events: 6"},
	"reset":          {"", "after_bytes: 1500"},
	"slow_drip":      {"rate: 8192"},
	"stall":          {"leg: prefill", "leg: decode\n    after_events: 6", "delay: 500ms\n    after_events: 6"},
	"truncate":       {"", "after_events: 6"},
	"wrong_status":   {"", "status: 503", "status: 400"},
}

// soakScenario holds every registered fault, each at a probability of 0.3 % of the calls it can befall.
func soakScenario(seed uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed: %d\nrules:\n", seed)
	for _, f := range fault.Faults() {
		shapes := soakRules[f.Name]
		if shapes == nil {
			shapes = []string{""}
		}
		for _, shape := range shapes {
			fmt.Fprintf(&b, "  - fault: %s\n    probability: %g\n", f.Name, .003/float64(len(shapes)))
			if shape != "" {
				fmt.Fprintf(&b, "    %s\n", shape)
			}
		}
	}
	return b.String()
}

// tokensOf is how many tokens are asked for with the prompt of that number.
func tokensOf(prompt int) int { return 10 + prompt%30 }

// soaking is one soak: its gateway, its workers, and what came of the requests.
type soaking struct {
	*proc
	prompts []string
	start   time.Time
	logTail string // the end of what the gateway logged

	mu     sync.Mutex // guards the tally
	asked  int
	right  int
	left   int            // clients that left before their answer's end
	errors map[string]int // typed errors by code
	wrong  []string       // the first answers that were neither
	lost   int            // how many were neither
	hits   map[string]int // injected faults by name
}

// BenchmarkSoak puts an open loop of requests on a gateway process while its calls to workers meet every registered fault
// and worker processes are killed and started again. Each answer is token for token the undisturbed one, or one typed
// error; a client that leaves has had the beginning of it. Memory, descriptors and goroutines stay flat, and are back
// at the end.
func BenchmarkSoak(b *testing.B) {
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	b.Logf("seed %d, %v", seed, *soakFor)
	s := &soaking{prompts: prompts("Soak", soakPrompts), errors: map[string]int{}, hits: map[string]int{}}
	transport := http.DefaultTransport.(*http.Transport)
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost, transport.IdleConnTimeout = 0, 1000, 30*time.Second
	inside, err := stack.Embed(stack.EmbedConfig{})
	require.NoError(b, err)
	defer inside.Close()
	workers := map[string]*proc{}
	work := func(id string) {
		role, _, _ := strings.Cut(id, "-")
		workers[id] = startWorker(b, "--role", role, "--id", id, "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL(),
			"--lease-ttl", "5s", "--log-level", "error")
	}
	ids := []string{"prefill-1", "prefill-2", "decode-1", "decode-2", "decode-3"}
	for _, id := range ids {
		work(id)
	}
	s.proc = startServe(b, "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL(),
		"--fault-scenario", written(b, "soak.yaml", soakScenario(seed)), "--stream-idle-timeout", "3s", "--first-token-timeout", "5s")
	s.up(ids...)
	for range 10 {
		s.ask(b.Context(), 0, 0)
	}
	s.asked, s.right = 0, 0
	// The gateway closes a connection to a worker that has been idle for 4 s; those of clients are closed here.
	const settle = 6 * time.Second
	rest := func() sample {
		transport.CloseIdleConnections()
		return s.sample()
	}
	wait(b.Context(), settle)
	before := rest()

	s.start = time.Now()
	ctx, enough := context.WithTimeout(b.Context(), *soakFor)
	defer enough()
	var group sync.WaitGroup
	group.Go(func() { s.load(ctx, rand.New(rand.NewPCG(seed, 1))) })
	var samples []sample
	group.Go(func() {
		every(ctx, time.Second, func() {
			samples = append(samples, s.sample())
			s.readLog()
		})
	})
	kills := 0
	rng := rand.New(rand.NewPCG(seed, 2))
	for wait(ctx, 5*time.Second+time.Duration(rng.Int64N(int64(10*time.Second)))) {
		id := ids[rng.IntN(len(ids))]
		workers[id].kill()
		kills++
		wait(ctx, time.Second) // as an orchestrator would
		work(id)
	}
	group.Wait()
	s.up(ids...)
	s.readLog()

	var after sample
	s.eventually("no request is in flight", func() bool { after = s.sample(); return after.held[inFlight] == 0 })
	transport.CloseIdleConnections()
	wait(b.Context(), settle)
	s.eventually("descriptors and goroutines are back", func() bool {
		after = rest()
		return after.held[descriptors] <= before.held[descriptors]+10 && after.held[goroutines] <= before.held[goroutines]+20
	})
	s.nothingHeld(true)
	_, metrics := get(s.url + "/metrics")
	resumes := totalOf(metrics, "tandem_frontend_model_migration_total", `migration_type="ongoing_request"`)
	retries := totalOf(metrics, "tandem_frontend_model_migration_total", `migration_type="new_request"`)
	gone := totalOf(metrics, "tandem_frontend_disconnected_clients", "")

	first, middle, last := thirds(samples)
	figures := s.figures(kills, int(resumes), int(retries), before, first, middle, last, after)
	b.Logf("\n%s", figures)
	b.Logf("%d clients left, the gateway counts %.0f; faults injected: %v", s.left, gone, s.hits)
	for _, wrong := range s.wrong {
		b.Error(wrong)
	}
	if s.lost > 0 {
		b.Errorf("%d answers of %d were neither the undisturbed one nor one typed error", s.lost, s.asked)
	}
	// A refused connection takes its worker out for 5 s, so that those that are injected leave none of a role at times.
	assert.GreaterOrEqual(b, s.right, s.asked*3/4, "right answers of %d", s.asked)
	assert.LessOrEqual(b, last.held[memory], middle.held[memory]*1.05+4, "memory grows from the middle third to the last, MiB")
	for _, kind := range []int{descriptors, goroutines} {
		assert.LessOrEqual(b, last.held[kind], middle.held[kind]*1.1+20, "%s grow from the middle third to the last", held[kind])
	}
	for _, f := range fault.Faults() {
		assert.NotZero(b, s.hits[f.Name], "how often %s was injected", f.Name)
	}
	if b.Failed() {
		b.Logf("the gateway's log ends:\n%s", s.logTail)
	}
	if *fleet.Update && !b.Failed() {
		writeSoak(b, figures, samples)
	}
	s.stop()
}

// every calls do once a period until the context ends.
func every(ctx context.Context, period time.Duration, do func()) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// wait reports whether the context lasted that long.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// load sends soakRate requests a second until the context ends, and returns once each has ended. Of fifty clients one
// leaves in the middle of its answer.
func (s *soaking) load(ctx context.Context, rng *rand.Rand) {
	var group sync.WaitGroup
	begun, n := time.Now(), 0
	every(ctx, time.Second/soakRate, func() {
		for ; n < int(time.Since(begun).Seconds()*soakRate); n++ { // a tick that came late is made up for
			i, leaves := rng.IntN(len(s.prompts)), 0
			if rng.IntN(50) == 0 {
				leaves = 1 + rng.IntN(tokensOf(i))
			}
			group.Go(func() { s.ask(s.t.Context(), i, leaves) })
		}
	})
	group.Wait()
}

// ask makes the request of a prompt, whose client leaves after so many events where leaves is not 0, and counts what came of it.
func (s *soaking) ask(ctx context.Context, prompt, leaves int) {
	ctx, leave := context.WithTimeout(ctx, 2*time.Minute) // longer than every limit of the gateway together
	defer leave()
	events := 0
	a := s.stream(ctx, s.prompts[prompt], tokensOf(prompt), func() {
		if events++; events == leaves {
			leave()
		}
	})
	whole, err := a.verdict()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	switch {
	case leaves > 0 && events >= leaves && strings.HasPrefix(fleet.Answered(a.prompt, a.n), a.text):
		s.left++
	case whole:
		s.right++
	case err == nil:
		s.errors[*fleet.FailureIn(a.Answer).Code]++
	default:
		s.lost++
		if len(s.wrong) < 20 {
			s.wrong = append(s.wrong, fmt.Sprintf("%v after the start: %v", time.Since(s.start).Round(time.Second), err))
		}
	}
}

// injected finds the faults in the gateway's log.
var injected = regexp.MustCompile(`msg="fault injected" fault=(\w+)`)

// readLog counts the faults that the gateway has logged since the last call, and keeps only the end of its warnings.
func (s *soaking) readLog() {
	text := s.logs.Take()
	for _, m := range injected.FindAllStringSubmatch(text, -1) {
		s.hits[m[1]]++
	}
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "level=INFO") {
			s.logTail += line
		}
	}
	s.logTail = s.logTail[max(0, len(s.logTail)-20_000):]
}

// What a gateway holds.
const (
	memory = iota
	heap
	descriptors
	goroutines
	inFlight
)

// held are the names of it.
var held = [...]string{"resident memory, MiB", "heap in use, MiB", "descriptors", "goroutines", "requests in flight"}

// sample is what the gateway's process holds at a moment, or on average over some.
type sample struct {
	at   time.Duration // since the start
	held [len(held)]float64
}

// sample reads one from /metrics.
func (s *soaking) sample() sample {
	_, metrics := get(s.url + "/metrics")
	now := sample{at: time.Since(s.start)}
	for kind, series := range [len(held)]string{"process_resident_memory_bytes", "go_memstats_heap_inuse_bytes", "process_open_fds",
		"go_goroutines", "tandem_frontend_active_requests"} {
		now.held[kind] = totalOf(metrics, series, "")
	}
	now.held[memory] /= 1 << 20
	now.held[heap] /= 1 << 20
	assert.True(s.t, now.held[memory] != 0 && now.held[goroutines] != 0,
		"%v after the start the gateway could not be sampled: %+v", now.at, now)
	return now
}

// thirds are the means of the samples' thirds.
func thirds(all []sample) (first, middle, last sample) {
	mean := func(of []sample) (m sample) {
		for _, s := range of {
			for kind, n := range s.held {
				m.held[kind] += n / float64(len(of))
			}
		}
		return m
	}
	n := len(all)
	return mean(all[:n/3]), mean(all[n/3 : n*2/3]), mean(all[n*2/3:])
}

// figures are the soak's result as docs/faults.md has it.
func (s *soaking) figures(kills, resumes, retries int, before, first, middle, last, after sample) string {
	var codes []string
	all := 0
	for _, code := range slices.Sorted(maps.Keys(s.errors)) {
		codes, all = append(codes, fmt.Sprintf("%d `%s`", s.errors[code], code)), all+s.errors[code]
	}
	hits := 0
	for _, n := range s.hits {
		hits += n
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| %s at %d requests a second | |\n|---|---|\n", fmt.Sprintf("%g min", math.Round(soakFor.Minutes()*100)/100), soakRate)
	fmt.Fprintf(&b, "| requests | %d |\n| undisturbed, token for token | %d |\n| one typed error | %d: %s |\n", s.asked, s.right, all,
		strings.Join(codes, ", "))
	fmt.Fprintf(&b, "| clients that left in mid-answer | %d |\n| neither | %d |\n", s.left, s.lost)
	fmt.Fprintf(&b, "| faults injected, of %d kinds | %d |\n| workers killed | %d |\n| streams that resumed | %d |\n| requests tried again before their first token | %d |\n", len(s.hits), hits, kills, resumes, retries)
	b.WriteString("\n| gateway | before | first third | middle third | last third | after |\n|---|---|---|---|---|---|\n")
	for kind, name := range held {
		fmt.Fprintf(&b, "| %s |", name)
		for _, at := range []sample{before, first, middle, last, after} {
			fmt.Fprintf(&b, " %.0f |", at.held[kind])
		}
		b.WriteByte('\n')
	}
	return b.String()
}
