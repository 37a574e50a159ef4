package engine

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var epoch = time.Unix(1_000_000, 0)

func testVocabulary() Vocabulary {
	v := Vocabulary{EOS: 1}
	for i := range uint32(500) {
		v.Words = append(v.Words, 10+i)
	}
	return v
}

// smallConfig is an engine of 64 blocks of 4 tokens.
func smallConfig() Config {
	return Config{BlockSize: 4, TotalKVBlocks: 64, ContextLength: 160, MaxNumSeqs: 8, MaxNumBatchedTokens: 32}
}

func newTestCore(t testing.TB, cfg Config) *Core {
	t.Helper()
	c, err := NewCore(cfg, testVocabulary())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// prompt is n tokens that no prompt of another seed shares.
func prompt(seed uint32, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = seed*1_000_003 + uint32(i)
	}
	return p
}

func mustAdd(t testing.TB, c *Core, rs ...Request) {
	t.Helper()
	for _, r := range rs {
		if err := c.Add(r); err != nil {
			t.Fatalf("Add(%s): %v", r.ID, err)
		}
	}
}

// observed is an output and when it came.
type observed struct {
	Output
	at time.Duration // since epoch
}

// drive steps a core from now until nothing is left to do.
func drive(t testing.TB, c *Core, now time.Time) (outs []observed, end time.Time) {
	t.Helper()
	for range 1_000_000 {
		r := c.Step(now)
		for _, o := range r.Outputs {
			outs = append(outs, observed{o, now.Sub(epoch)})
		}
		if err := audit(c); err != nil {
			t.Fatal(err)
		}
		if r.Next.IsZero() {
			return outs, now
		}
		if r.Next.Before(now) {
			t.Fatalf("Next is %v before now", now.Sub(r.Next))
		}
		now = r.Next
	}
	t.Fatal("the core never came to rest")
	return nil, now
}

func tokensOf(outs []observed, id string) (ids []uint32) {
	for _, o := range outs {
		if o.ID == id && o.Generated > 0 {
			ids = append(ids, o.Token)
		}
	}
	return ids
}

func milliseconds(ms float64) time.Duration {
	return time.Duration(math.Round(ms * 1e6))
}

func TestLatencyFollowsTheFit(t *testing.T) {
	l := Qwen3Latency()
	for _, tc := range []struct {
		name             string
		decodes, context int
		chunks           float64
		want             float64 // ms
	}{
		{"one decode", 1, 1000, 0, 14.05 + 0.0625 + 0.0492},
		{"64 decodes of 2k", 64, 128_000, 0, 14.05 + 4 + 6.2976},
		{"1k prompt alone", 0, 0, l.ChunkMillis(1000, 0), 45.5 + 0.715},
		{"tiny prompt alone costs the weights", 0, 0, l.ChunkMillis(16, 0), 14.05},
		{"chunk behind a prefix", 0, 0, l.ChunkMillis(2000, 4000), 91 + 1.43*2*5},
		{"mixed", 2, 3000, l.ChunkMillis(1000, 0), 14.05 + 0.125 + 0.1476 + 46.215},
	} {
		got := l.Step(tc.decodes, tc.context, tc.chunks)
		if d := got - milliseconds(tc.want); d.Abs() > time.Nanosecond {
			t.Errorf("%s: %v, want %.4f ms", tc.name, got, tc.want)
		}
	}
}

func TestFirstTokenAndGapsTakeTheFormulasTime(t *testing.T) {
	c := newTestCore(t, Config{})
	l := Qwen3Latency()
	mustAdd(t, c, Request{ID: "a", Prompt: prompt(1, 20_000), MaxTokens: 3, IgnoreEOS: true})
	outs, _ := drive(t, c, epoch)

	prefill := l.Step(0, 0, l.ChunkMillis(8192, 0)) + l.Step(0, 0, l.ChunkMillis(8192, 8192)) + l.Step(0, 0, l.ChunkMillis(3616, 16384))
	want := []time.Duration{prefill, prefill + l.Step(1, 20_001, 0), prefill + l.Step(1, 20_001, 0) + l.Step(1, 20_002, 0)}
	for i, o := range outs {
		if o.at != want[i] {
			t.Errorf("token %d at %v, want %v", i, o.at, want[i])
		}
	}
	if last := outs[len(outs)-1]; len(outs) != 3 || last.Reason != Length {
		t.Errorf("%d outputs, the last ends with %v", len(outs), last.Reason)
	}
}

func TestSpeedupDividesStepsAndTransfers(t *testing.T) {
	slow, fast := newTestCore(t, Config{}), newTestCore(t, Config{Speedup: 4})
	for _, c := range []*Core{slow, fast} {
		mustAdd(t, c, Request{ID: "a", Prompt: prompt(1, 1000), MaxTokens: 1})
	}
	a, b := slow.Step(epoch).Next.Sub(epoch), fast.Step(epoch).Next.Sub(epoch)
	if (a - 4*b).Abs() > 4*time.Nanosecond {
		t.Errorf("step %v at speed 1, %v at speed 4", a, b)
	}
	a, b = slow.transferTime(12_000), fast.transferTime(12_000)
	if (a - 4*b).Abs() > 4*time.Nanosecond {
		t.Errorf("transfer %v at speed 1, %v at speed 4", a, b)
	}
}

func TestRunningSequencesShareTheBudgetWithChunksOfNewOnes(t *testing.T) {
	c := newTestCore(t, Config{})
	l := Qwen3Latency()
	mustAdd(t, c, Request{ID: "a", Prompt: prompt(1, 1000), MaxTokens: 3, IgnoreEOS: true})
	now := c.Step(epoch).Next
	mustAdd(t, c, Request{ID: "b", Prompt: prompt(2, 10_000), MaxTokens: 1, IgnoreEOS: true})
	r := c.Step(now)
	if want := l.Step(1, 1001, l.ChunkMillis(8191, 0)); r.Next.Sub(now) != want {
		t.Errorf("mixed step takes %v, want %v", r.Next.Sub(now), want)
	}
	now = r.Next
	r = c.Step(now)
	if want := l.Step(1, 1002, l.ChunkMillis(1809, 8191)); r.Next.Sub(now) != want {
		t.Errorf("second mixed step takes %v, want %v", r.Next.Sub(now), want)
	}
}

func TestPrefixIsReusedButItsLastTokenIsComputed(t *testing.T) {
	for _, tc := range []struct {
		first, second []uint32
		cached        int
	}{
		{prompt(1, 64), prompt(1, 64), 60},
		{prompt(1, 64), prompt(1, 65), 64},
		{prompt(1, 64), prompt(1, 63), 60},
		{prompt(1, 64), append(prompt(1, 32), prompt(9, 32)...), 32},
		{prompt(1, 64), prompt(9, 64), 0},
		{prompt(1, 3), prompt(1, 3), 0},
	} {
		c := newTestCore(t, smallConfig())
		mustAdd(t, c, Request{ID: "a", Prompt: tc.first, MaxTokens: 1})
		_, now := drive(t, c, epoch)
		mustAdd(t, c, Request{ID: "b", Prompt: tc.second, MaxTokens: 1})
		outs, _ := drive(t, c, now)
		if outs[0].Cached != tc.cached {
			t.Errorf("%d tokens after %d: %d cached, want %d", len(tc.second), len(tc.first), outs[0].Cached, tc.cached)
		}
	}
}

func TestAnswersAreCachedToo(t *testing.T) {
	c := newTestCore(t, smallConfig())
	p := prompt(1, 10)
	mustAdd(t, c, Request{ID: "a", Prompt: p, MaxTokens: 11, IgnoreEOS: true})
	outs, now := drive(t, c, epoch)
	// 21 tokens, of which the last was drawn but not computed: 5 full blocks.
	mustAdd(t, c, Request{ID: "b", Prompt: slices.Concat(p, tokensOf(outs, "a"), prompt(3, 3)), MaxTokens: 1})
	outs, _ = drive(t, c, now)
	if outs[0].Cached != 20 {
		t.Errorf("%d tokens of the first turn cached in the second, want 20", outs[0].Cached)
	}
}

func TestEvictionTakesTheLongestUnusedLeaf(t *testing.T) {
	cfg := smallConfig()
	cfg.TotalKVBlocks, cfg.ContextLength = 10, 40
	c := newTestCore(t, cfg)
	now := epoch
	run := func(id string, p []uint32) Result {
		t.Helper()
		mustAdd(t, c, Request{ID: id, Prompt: p, MaxTokens: 1})
		r := c.Step(now)
		var events []Event
		for !r.Next.IsZero() {
			now = r.Next
			events = append(events, r.Events...)
			r = c.Step(now)
		}
		r.Events = append(events, r.Events...)
		return r
	}
	hashes := func(p []uint32) []uint64 { return BlockHashes(nil, p, 4, 0) }
	trunk := prompt(1, 8)
	left, right := append(slices.Clone(trunk), prompt(2, 8)...), append(slices.Clone(trunk), prompt(3, 8)...)
	run("left", left)          // trunk 2, left 2
	run("right", right)        // right 2
	run("other", prompt(4, 8)) // 2: eight cached, two free
	run("left again", left)
	r := run("new", prompt(5, 20)) // needs 5, 2 are free: three leaves go
	var removed []uint64
	for _, e := range r.Events {
		if e.Kind == Removed {
			removed = append(removed, e.Hashes...)
		}
	}
	want := []uint64{hashes(right)[3], hashes(right)[2], hashes(prompt(4, 8))[1]}
	if !slices.Equal(removed, want) {
		t.Errorf("removed %x, want right's two blocks from its end, then other's last: %x", removed, want)
	}
}

func TestPreemptedSequencesRecomputeAndAnswerTheSame(t *testing.T) {
	roomy, tight := smallConfig(), smallConfig()
	roomy.TotalKVBlocks, roomy.ContextLength = 1000, 80
	tight.TotalKVBlocks, tight.ContextLength = 24, 80
	var answers [2]map[string][]uint32
	for i, cfg := range []Config{roomy, tight} {
		c := newTestCore(t, cfg)
		for k := range uint32(4) {
			mustAdd(t, c, Request{ID: fmt.Sprint(k), Prompt: prompt(k, 12), MaxTokens: 50, IgnoreEOS: true})
		}
		outs, _ := drive(t, c, epoch)
		answers[i] = map[string][]uint32{}
		for k := range 4 {
			answers[i][fmt.Sprint(k)] = tokensOf(outs, fmt.Sprint(k))
		}
		if got := c.Stats().Preemptions > 0; got != (i == 1) {
			t.Errorf("cache of %d blocks: %d preemptions", cfg.TotalKVBlocks, c.Stats().Preemptions)
		}
	}
	if !reflect.DeepEqual(answers[0], answers[1]) {
		t.Error("preemption changed the answers")
	}
}

func TestLastAdmittedIsPreemptedFirst(t *testing.T) {
	cfg := smallConfig()
	cfg.TotalKVBlocks, cfg.ContextLength = 10, 40
	c := newTestCore(t, cfg)
	mustAdd(t, c,
		Request{ID: "old", Prompt: prompt(1, 16), MaxTokens: 20, IgnoreEOS: true},
		Request{ID: "young", Prompt: prompt(2, 16), MaxTokens: 20, IgnoreEOS: true})
	outs, _ := drive(t, c, epoch)
	var ended []string
	for _, o := range outs {
		if o.Reason != Unfinished {
			ended = append(ended, o.ID)
		}
	}
	if !slices.Equal(ended, []string{"old", "young"}) || c.Stats().Preemptions == 0 {
		t.Errorf("ended in order %v after %d preemptions", ended, c.Stats().Preemptions)
	}
}

func TestAbortFreesInMidStep(t *testing.T) {
	c := newTestCore(t, Config{})
	mustAdd(t, c,
		Request{ID: "a", Prompt: prompt(1, 5000), MaxTokens: 5, IgnoreEOS: true},
		Request{ID: "b", Prompt: prompt(2, 1000), MaxTokens: 5, IgnoreEOS: true})
	r := c.Step(epoch)
	mid := epoch.Add(r.Next.Sub(epoch) / 2)
	if !c.Abort("a") || c.Abort("a") {
		t.Error("the first Abort must end it, the second find nothing")
	}
	if held := c.cache.active(); held != blocksFor(1000, 16) {
		t.Errorf("%d blocks active in mid-step, want only b's", held)
	}
	m := c.Step(mid)
	if m.Next != r.Next {
		t.Errorf("the step now ends at %v, before at %v", m.Next.Sub(epoch), r.Next.Sub(epoch))
	}
	if len(m.Outputs) != 1 || m.Outputs[0].ID != "a" || m.Outputs[0].Reason != Aborted {
		t.Errorf("outputs after the abort: %+v", m.Outputs)
	}
	outs, _ := drive(t, c, r.Next)
	if len(outs) != 5 || outs[0].ID != "b" {
		t.Errorf("b went on with %d outputs", len(outs))
	}
}

func TestLateTimerDoesNotSlowTheEngine(t *testing.T) {
	c := newTestCore(t, Config{})
	mustAdd(t, c, Request{ID: "a", Prompt: prompt(1, 1000), MaxTokens: 100, IgnoreEOS: true})
	end := c.Step(epoch).Next
	next := c.Step(end.Add(2 * time.Millisecond)).Next
	if want := Qwen3Latency().Step(1, 1001, 0); next.Sub(end) != want {
		t.Errorf("noticed 2 ms late, the next step ends %v after it, want %v", next.Sub(end), want)
	}
	stopped := next.Add(time.Minute)
	if again := c.Step(stopped).Next; again.Sub(stopped) < 14*time.Millisecond {
		t.Errorf("after a minute's stop the engine catches up: next step ends %v later", again.Sub(stopped))
	}
}

func TestStoppingTokens(t *testing.T) {
	v := testVocabulary()
	// The first answer that ends by itself, and where.
	seed, at := uint32(0), 0
	for at = 0; at < 2; seed++ {
		s := Begin(0).FoldAll(prompt(seed, 8))
		for at = 0; at < 60; at++ {
			token := v.Next(s, true)
			if token == v.EOS {
				break
			}
			s = s.Fold(token)
		}
		if at == 60 {
			at = 0
		}
	}
	seed--
	p := prompt(seed, 8)
	third := v.Next(Begin(0).FoldAll(p).Fold(v.Next(Begin(0).FoldAll(p), true)), true)
	for _, tc := range []struct {
		name   string
		req    Request
		tokens int
		reason Reason
	}{
		{"the end token", Request{MaxTokens: 100}, at + 1, Stopped},
		{"ignored", Request{MaxTokens: 100, IgnoreEOS: true}, 100, Length},
		{"not yet allowed", Request{MaxTokens: at + 1, MinTokens: at + 1}, at + 1, Length},
		{"a stop token", Request{MaxTokens: 100, StopTokens: []uint32{third}}, 2, Stopped},
		{"a stop token before its time", Request{MaxTokens: 3, MinTokens: 2, StopTokens: []uint32{third}}, 3, Length},
		{"the context's end", Request{IgnoreEOS: true}, 160 - 8, Length},
	} {
		c := newTestCore(t, smallConfig())
		tc.req.ID, tc.req.Prompt = "a", p
		mustAdd(t, c, tc.req)
		outs, _ := drive(t, c, epoch)
		if last := outs[len(outs)-1]; len(outs) != tc.tokens || last.Reason != tc.reason {
			t.Errorf("%s: %d tokens, %v; want %d, %v", tc.name, len(outs), last.Reason, tc.tokens, tc.reason)
		}
	}
}

func TestAnyInterruptionContinuesTheSame(t *testing.T) {
	cfg := smallConfig()
	p := prompt(7, 13)
	whole := func(p []uint32, max int) []uint32 {
		c := newTestCore(t, cfg)
		mustAdd(t, c, Request{ID: "a", Prompt: p, MaxTokens: max, IgnoreEOS: true})
		outs, _ := drive(t, c, epoch)
		return tokensOf(outs, "a")
	}
	want := whole(p, 60)
	for cut := range want {
		got := slices.Concat(want[:cut], whole(slices.Concat(p, want[:cut]), 60-cut))
		if !slices.Equal(got, want) {
			t.Fatalf("interrupted after %d tokens, the answer differs", cut)
		}
	}
}

func TestChoicesDiffer(t *testing.T) {
	c := newTestCore(t, smallConfig())
	for i := range 3 {
		mustAdd(t, c, Request{ID: fmt.Sprint(i), Prompt: prompt(1, 9), Choice: i, MaxTokens: 20, IgnoreEOS: true})
	}
	outs, _ := drive(t, c, epoch)
	if slices.Equal(tokensOf(outs, "0"), tokensOf(outs, "1")) || slices.Equal(tokensOf(outs, "1"), tokensOf(outs, "2")) {
		t.Error("two choices have one answer")
	}
}

func TestAddRefuses(t *testing.T) {
	c := newTestCore(t, smallConfig())
	mustAdd(t, c, Request{ID: "live", Prompt: prompt(1, 4), MaxTokens: 1})
	var tooLong *ContextError
	for _, tc := range []struct {
		name string
		req  Request
		is   func(error) bool
	}{
		{"no prompt", Request{ID: "x"}, func(err error) bool { return errors.Is(err, ErrEmptyPrompt) }},
		{"a live id", Request{ID: "live", Prompt: prompt(1, 4)}, func(err error) bool { return errors.Is(err, ErrDuplicate) }},
		{"foreign hashes", Request{ID: "x", Prompt: prompt(1, 9), Hashes: []uint64{1}}, func(err error) bool { return errors.Is(err, ErrHashes) }},
		{"a full context", Request{ID: "x", Prompt: prompt(1, 160)}, func(err error) bool { return errors.As(err, &tooLong) }},
		{"too long an answer", Request{ID: "x", Prompt: prompt(1, 100), MaxTokens: 61}, func(err error) bool { return errors.As(err, &tooLong) }},
		{"an answer of all integers", Request{ID: "x", Prompt: prompt(1, 100), MaxTokens: math.MaxInt}, func(err error) bool { return errors.As(err, &tooLong) }},
	} {
		if err := c.Add(tc.req); !tc.is(err) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if n := len(c.seqs); n != 1 {
		t.Errorf("%d sequences live after refusals, want 1", n)
	}
}

func TestConfigNamesTheFieldItRefuses(t *testing.T) {
	for _, tc := range []struct {
		field string
		cfg   Config
	}{
		{"Role", Config{Role: "encode"}},
		{"BlockSize", Config{BlockSize: -1}},
		{"TotalKVBlocks", Config{TotalKVBlocks: 100}},
		{"MaxNumSeqs", Config{MaxNumSeqs: -2}},
		{"MaxNumBatchedTokens", Config{MaxNumBatchedTokens: -2}},
		{"Speedup", Config{Speedup: math.NaN()}},
		{"Speedup", Config{Speedup: -1}},
		{"BandwidthBytesPerSecond", Config{BandwidthBytesPerSecond: math.Inf(1)}},
		{"Lease", Config{Lease: -time.Second}},
		{"Latency.Quad", Config{Latency: Latency{A: 1, Quad: -1}}},
	} {
		err := tc.cfg.Validate()
		if err == nil || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%+v: %v does not name %s", tc.cfg, err, tc.field)
		}
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
}

func TestRequestsWithHashesAloneAreServed(t *testing.T) {
	c := newTestCore(t, smallConfig())
	hashes := BlockHashes(nil, prompt(1, 40), 4, 0)
	mustAdd(t, c, Request{ID: "a", PromptTokens: 41, Hashes: hashes, MaxTokens: 9, IgnoreEOS: true})
	first, now := drive(t, c, epoch)
	mustAdd(t, c, Request{ID: "b", PromptTokens: 43, Hashes: hashes, MaxTokens: 9, IgnoreEOS: true})
	second, _ := drive(t, c, now)
	if first[0].Cached != 0 || second[0].Cached != 40 {
		t.Errorf("cached %d, then %d; want 0, 40", first[0].Cached, second[0].Cached)
	}
	if slices.Equal(tokensOf(first, "a"), tokensOf(second, "b")) {
		t.Error("unknown tails gave one answer")
	}
	for _, e := range c.Snapshot() {
		if e.TokenIDs != nil {
			t.Error("tokens appeared that nobody gave")
		}
	}
}

func TestClearWaitsForIdleness(t *testing.T) {
	c := newTestCore(t, smallConfig())
	mustAdd(t, c, Request{ID: "a", Prompt: prompt(1, 40), MaxTokens: 1})
	end := c.Step(epoch).Next
	if c.ClearCache() {
		t.Error("cleared under a running sequence")
	}
	drive(t, c, end)
	if !c.ClearCache() || len(c.Snapshot()) != 0 {
		t.Error("an idle cache was not cleared")
	}
	if e := c.Step(end.Add(time.Hour)).Events; len(e) != 1 || e[0].Kind != Cleared {
		t.Errorf("events %+v, want one cleared", e)
	}
}

func TestSnapshotReplaysToTheSameIndex(t *testing.T) {
	c := newTestCore(t, smallConfig())
	live := mirror{}
	trunk := prompt(1, 16)
	now := epoch
	for i := range uint32(12) {
		mustAdd(t, c, Request{ID: fmt.Sprint(i), Prompt: append(slices.Clone(trunk[:4+i%4*4]), prompt(i, 20)...), MaxTokens: 3})
		for {
			r := c.Step(now)
			if err := live.apply(r.Events); err != nil {
				t.Fatal(err)
			}
			if r.Next.IsZero() {
				break
			}
			now = r.Next
		}
	}
	replayed := mirror{}
	if err := replayed.apply(c.Snapshot()); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(live, replayed) || len(live) == 0 {
		t.Errorf("%d blocks by events, %d by snapshot", len(live), len(replayed))
	}
}
