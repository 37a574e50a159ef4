package operations

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/problems"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/certs"
	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// namedWithin is how long after its first evidence an incident's cause may take to be the first problem.
const namedWithin = 10 * time.Second

// Ten incidents, each at a fleet that works: within ten seconds the first problem named is the cause, and its link leads
// to a page that has the remedy. Lost servers are real ones, so that only their order of events is checked.
func TestIncidents(t *testing.T) {
	for name, play := range map[string]func(t *testing.T){
		"dead prefill pool": deadPool, "slow worker": slowWorker, "flapping worker": flappingWorker, "one class overloads": oneClass,
		"full KV": fullKV, "certificate ends": certificateEnds, "wrong template on one worker": wrongTemplate, "bad rollout": badRollout,
	} {
		fleet.VirtualRun(t, name, play)
	}
	t.Run("lost NATS", lostNATS)
	t.Run("lost etcd", lostEtcd)
}

// traffic sends what ask returns so often a second until stop is called. What becomes of it does not matter.
func traffic(f *fleet.Fleet, perSecond int, ask func(i int) (path, body string), headers ...string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		ticks := time.NewTicker(time.Second / time.Duration(perSecond))
		defer ticks.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
			path, body := ask(i)
			group.Go(func() { _, _ = f.Try(ctx, path, body, nil, headers...) })
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}

// prompts are prompts of their own, of about 25 tokens times n, for so many tokens.
func prompts(n, tokens int) func(i int) (path, body string) {
	return func(i int) (path, body string) {
		return fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, " ", strings.Repeat(fleet.Long, n)), tokens)
	}
}

// first returns the problem that the gateway names first.
func first(f *fleet.Fleet) problems.Problem {
	if r := f.Gateway.Problems().(*problems.Report); len(r.Problems) > 0 {
		return r.Problems[0]
	}
	return problems.Problem{}
}

// named waits until the first problem is of that kind, which the page must explain, and stays so.
func named(f *fleet.Fleet, want problems.Kind, limit time.Duration) problems.Problem {
	f.T.Helper()
	for began := time.Now(); first(f).Kind != want; {
		if time.Since(began) > limit {
			f.T.Fatalf("%s is not named first within %v, but %+v", want, limit, f.Gateway.Problems())
		}
		<-time.After(100 * time.Millisecond)
	}
	p := first(f)
	f.T.Logf("%s: %s", p.Severity, p.Reason)
	for range 5 {
		<-time.After(time.Second)
		assert.Equal(f.T, want, first(f).Kind, "a while later: %+v", f.Gateway.Problems())
	}
	var answer problems.Report
	f.Get("/problems", &answer)
	require.NotEmpty(f.T, answer.Problems)
	assert.Equal(f.T, want, answer.Problems[0].Kind, "GET /problems")
	page, under := strings.CutPrefix(answer.Problems[0].Help, "https://github.com/tandem-pd/tandem/blob/main/")
	require.True(f.T, under, answer.Problems[0].Help)
	text, err := os.ReadFile("../../../../" + page)
	require.NoError(f.T, err, "its page")
	assert.Contains(f.T, strings.Join(strings.Fields(string(text)), " "), strings.TrimSuffix(p.Remedy, "."), "the page has the remedy")
	return p
}

// well checks that nothing urgent is wrong before the incident.
func well(f *fleet.Fleet, settle time.Duration) {
	f.T.Helper()
	<-time.After(settle)
	if p := first(f); p.Kind != "" && p.Severity != problems.Info {
		f.T.Fatalf("before the incident: %+v", f.Gateway.Problems())
	}
}

func deadPool(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
	defer traffic(f, 10, prompts(4, 20))()
	well(f, 10*time.Second)
	f.Workers["prefill-1"].Kill()
	f.Workers["prefill-2"].Kill()
	assert.Contains(t, named(f, problems.PoolDead, namedWithin).Reason, "no prefill worker serves")
}

// of changes one worker of a fleet.
func of(id string, change func(c *devfleet.WorkerConfig)) func(c *devfleet.WorkerConfig) {
	return func(c *devfleet.WorkerConfig) {
		if c.Engine.ID == id {
			change(c)
		}
	}
}

func slowWorker(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 4, Decode: 2, Worker: of("prefill-3", func(c *devfleet.WorkerConfig) { c.Engine.Speedup *= .15 })})
	well(f, 5*time.Second)
	defer traffic(f, 20, prompts(40, 4))()
	assert.Equal(t, []string{"prefill-3"}, named(f, problems.WorkerSlow, namedWithin).Workers)
}

func flappingWorker(t *testing.T) {
	o := fleet.Options{Prefill: 2, Decode: 4}
	f := fleet.New(t, o)
	o.Speedup = 20
	defer traffic(f, 10, prompts(4, 20))()
	well(f, 10*time.Second)
	for range 3 {
		f.Workers["decode-2"].Kill()
		<-time.After(8 * time.Second)
		f.Start(pools.Decode, "decode-2", o, slog.New(slog.DiscardHandler))
	}
	assert.Equal(t, []string{"decode-2"}, named(f, problems.WorkerFlapping, namedWithin).Workers)
}

func oneClass(t *testing.T) {
	f := fleet.New(t, fleet.Options{
		Prefill: 1, Decode: 1, Worker: func(c *devfleet.WorkerConfig) { c.Engine.MaxNumSeqs = 2 },
		Gateway: func(c *stack.GatewayConfig) { c.Flow.Queue.Limit, c.Flow.Queue.Classes = 10, fleet.TwoClasses(t) },
	})
	defer traffic(f, 1, prompts(4, 20))()
	well(f, 10*time.Second)
	defer traffic(f, 50, prompts(4, 200), "x-dynamo-meta-policy-class", "premium")()
	assert.Contains(t, named(f, problems.ClassOverload, namedWithin).Reason, "the policy class premium_all makes up")
}

func fullKV(t *testing.T) {
	f := fleet.New(t, fleet.Options{
		Prefill: 2, Decode: 2, Speedup: 1,
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.ContextLength, c.Engine.TotalKVBlocks = 2048, 256 },
	})
	well(f, 5*time.Second)
	defer traffic(f, 10, prompts(8, 1000))()
	f.Eventually("a request waits", func() bool { return f.Gateway.Flow.Waiting()["tandem-sim"].Waiting > 0 })
	assert.Contains(t, named(f, problems.KVFull, namedWithin).Reason, "of the KV blocks booked on 2 of 2 workers")
}

func certificateEnds(t *testing.T) {
	dir, ca := t.TempDir(), testkit.NewAuthority(t, "ca")
	cert, key := ca.Issue(testkit.Leaf{Names: []string{"gateway"}, For: (7*24 + 1) * time.Hour}).Write(t, dir, "own")
	store := certs.NewStore(0, slog.New(slog.DiscardHandler))
	files := certs.Files{Use: "clients"}
	files.Cert.Path, files.Key.Path = cert, key
	_, err := store.Open(files)
	require.NoError(t, err)
	bus := testkit.NewBus()
	t.Cleanup(bus.Close)
	f := fleet.Bare(t, fleet.GatewayConfig(), stack.Links{Bus: bus, Certs: store}, slog.LevelInfo)
	f.Bus = bus
	f.RunGateway()
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		f.Start(role, string(role)+"-1", fleet.Options{Speedup: 20}, f.Log)
	}
	f.Healthy()
	well(f, 5*time.Second)
	<-time.After(time.Hour) // seven days are left
	assert.Contains(t, named(f, problems.CertificateEnds, namedWithin).Reason, "the certificate for clients ends in")
}

func wrongTemplate(t *testing.T) {
	const own = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" +
		"{% if add_generation_prompt %}<|im_start|>assistant\n the{% endif %}"
	load := func(template string) *models.Language {
		language, err := models.Load(fleet.ModelFolder(t, template), 1<<20)
		require.NoError(t, err)
		return language
	}
	right, wrong := load(own), load(strings.ReplaceAll(own, "\n the", "\n this"))
	folder := fleet.ModelFolder(t, own)
	f := fleet.New(t, fleet.Options{
		Prefill: 3, Decode: 2,
		Gateway: func(c *stack.GatewayConfig) { c.Models.Tokenizers = []string{"tandem-sim=" + folder} },
		Worker: func(c *devfleet.WorkerConfig) {
			if c.Engine.Engine, c.Engine.Language = "vllm", right; c.Engine.ID == "prefill-2" {
				c.Engine.Language = wrong
			}
		},
	})
	well(f, 5*time.Second)
	const chat = `{"model":"tandem-sim","max_tokens":4,"stream":true,"messages":[{"role":"user","content":"%d %s"}]%s}`
	// The tokenizer has agreed with a worker, as in any fleet that served before: evidence against it, not the worker, is
	// what three prompts at the wrong worker would be else.
	f.Post(fleet.ChatPath, fmt.Sprintf(chat, 0, fleet.Long, `,"nvext":{"prefill_worker_id":"prefill-1"}`))
	f.Eventually("the tokenizer agrees with a worker", func() bool { return f.Value("tandem_tokenizer_checks_total", "agree") > 0 })
	defer traffic(f, 10, func(i int) (path, body string) {
		return fleet.ChatPath, fmt.Sprintf(chat, i+1, fleet.Long, "")
	})()
	assert.Equal(t, []string{"prefill-2"}, named(f, problems.WorkerDisagrees, namedWithin).Workers)
}

func badRollout(t *testing.T) {
	o := fleet.Options{Prefill: 4, Decode: 2, Speedup: 20}
	f := fleet.New(t, o)
	defer traffic(f, 20, prompts(40, 4))()
	well(f, time.Minute)
	o.Speedup = 10
	for i := range 4 {
		id := fmt.Sprint("prefill-", i+1)
		f.Workers[id].Kill()
		<-time.After(time.Second)
		f.Start(pools.Prefill, id, o, slog.New(slog.DiscardHandler))
		<-time.After(5 * time.Second)
	}
	assert.Len(t, named(f, problems.RolloutSlow, namedWithin).Workers, 4)
}

func lostNATS(t *testing.T) {
	t.Parallel()
	server, err := natsbus.StartServer(natsbus.ServerConfig{})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	f := fleet.New(t, fleet.Options{NATS: server.URL()})
	other := f.Another(fleet.GatewayConfig(), stack.Links{Group: fleet.Join(t, server.URL())})
	f.Eventually("both see each other, and nothing is wrong", func() bool {
		var report struct{ Replicas []struct{ State string } }
		f.Get("/workers", &report)
		return len(report.Replicas) == 1 && report.Replicas[0].State == "whole" && first(f).Kind == "" && first(other).Kind == ""
	})
	server.Close()
	for _, gateway := range []*fleet.Fleet{f, other} {
		named(gateway, problems.NATSLost, time.Minute)
	}
}

func lostEtcd(t *testing.T) {
	t.Parallel()
	server, err := discovery.StartEtcd(discovery.EtcdConfig{})
	require.NoError(t, err)
	closing := sync.OnceFunc(server.Close)
	t.Cleanup(closing)
	links := fleet.Links(t, &stack.Discovery{EtcdEndpoints: []string{server.URL()}}, "test")
	bus := testkit.NewBus()
	t.Cleanup(bus.Close)
	links.Bus = bus
	f := fleet.Bare(t, fleet.GatewayConfig(), links, slog.LevelInfo)
	f.Bus = bus
	f.RunGateway()
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		f.Start(role, string(role)+"-1", fleet.Options{Speedup: 20}, f.Log)
	}
	f.Healthy()
	f.Eventually("nothing is wrong", func() bool { return first(f).Kind == "" })
	closing()
	named(f, problems.EtcdLost, time.Minute)
}
