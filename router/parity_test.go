package router

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// A window is given as the comparisons in their order, w a wrong one, and what
// they do to the mark as the place of each change.
func TestWindow(t *testing.T) {
	r := strings.Repeat
	tests := []struct {
		name, compared string
		changes        []int // counted from 1
		marked         bool
	}{
		{"all right", r(".", 200), nil, false},
		{"too few to tell", "wwwwwww", nil, false},
		{"the first eight", "wwwwwwww", []int{8}, true},
		{"a quarter is not above a quarter", r("...w", 50), nil, false},
		{"three of the first eight", "w.w.w...", []int{8}, true},
		{"nine of a window", r(".", 32) + r("w", 9), []int{41}, true},
		{"eight of a window", r(".", 32) + r("w", 8) + r(".", 100), nil, false},
		{"right again needs a window of its own", r("w", 8) + r(".", 31), []int{8}, true},
		{"right again", r("w", 8) + r(".", 32), []int{8, 40}, false},
		{"four of a window are half the share", r("w", 8) + r("w.......", 20), []int{8}, true},
		{"three are below", r("w", 8) + r("w", 3) + r(".", 29), []int{8, 40}, false},
		{"it slides until it is right", r("w", 8) + r("w", 32) + r(".", 29), []int{8, 69}, false},
		{"between the two shares it stays as it was", r("w", 8) + r("w....", 40), []int{8}, true},
		{"the same from the other side", r(".", 32) + r("w....", 40), nil, false},
		{"once more", r("w", 8) + r(".", 32) + r("w", 9), []int{8, 40, 49}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := DefaultParity()
			var w window
			var changes []int
			for i, c := range tt.compared {
				changed, bad, of := w.add(c == 'w', &cfg)
				if changed {
					changes = append(changes, i+1)
				}
				latest := tt.compared[max(0, i+1-of) : i+1]
				if want := strings.Count(latest, "w"); bad != want {
					t.Errorf("after %d: %d wrong of %d, want %d", i+1, bad, of, want)
				}
			}
			if w.marked != tt.marked || len(changes) != len(tt.changes) {
				t.Fatalf("marked %v, changed at %v; want %v and %v", w.marked, changes, tt.marked, tt.changes)
			}
			for i := range changes {
				if changes[i] != tt.changes[i] {
					t.Errorf("changed at %v, want %v", changes, tt.changes)
				}
			}
		})
	}
	cfg := ParityConfig{Window: 64, Least: 64, Wrong: 0.5}
	var w window
	for range 100 {
		w.add(true, &cfg)
	}
	if w.n != 36 || w.wrong() != 36 || !w.marked {
		t.Errorf("a window of 64 holds %d, %d wrong, marked %v", w.n, w.wrong(), w.marked)
	}
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name        string
		isl         int
		least, most int // believed
		cached      int // said
		block       int // the engine's
		came, went  uint64
		want        Verdict
	}{
		{"nothing was and nothing was believed", 1000, 0, 0, 0, 16, 0, 0, Unsampled},
		{"as believed", 1000, 992, 992, 992, 16, 0, 0, Right},
		{"the last block is always computed", 64, 64, 64, 48, 16, 0, 0, Right},
		{"and one more with speculative decoding", 64, 64, 64, 32, 16, 0, 0, Right},
		{"two more", 64, 64, 64, 16, 16, 0, 0, Over},
		{"a tenth of the prompt", 10_000, 8000, 8000, 7000, 16, 0, 0, Right},
		{"more than that", 10_000, 8000, 8000, 6999, 16, 0, 0, Over},
		{"all of it", 10_000, 8000, 8000, 0, 16, 0, 0, Over},
		{"more was there", 10_000, 0, 0, 8000, 16, 0, 0, Under},
		{"a tenth more", 10_000, 8000, 8000, 9000, 16, 0, 0, Right},
		{"the engine's blocks are larger", 640, 512, 512, 256, 128, 0, 0, Right},
		{"not so large", 640, 512, 512, 256, 64, 0, 0, Over},
		{"from a slower tier", 10_000, 0, 8000, 8000, 16, 0, 0, Right},
		{"not from it, for engines differ", 10_000, 4000, 8000, 4000, 16, 0, 0, Right},
		{"it was evicted on the way", 10_000, 8000, 8000, 0, 16, 0, 500, Moved},
		{"not so much was", 10_000, 8000, 8000, 0, 16, 0, 437, Over},
		{"a sibling brought it", 10_000, 0, 0, 8000, 16, 500, 0, Moved},
		{"what came does not excuse what is missing", 10_000, 8000, 8000, 0, 16, 5000, 0, Over},
		{"what went does not excuse what is there", 10_000, 0, 0, 8000, 16, 0, 5000, Under},
	}
	for _, tt := range tests {
		b := belief{held: true, isl: tt.isl, block: 16, least: tt.least, most: tt.most}
		if got := b.judge(tt.cached, tt.block, tt.came, tt.went); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// parityRig is a router over one worker, whose events store what tell says.
type parityRig struct {
	*Router
	t    *testing.T
	pool *pools.Pool
	idx  *index.Index
	logs bytes.Buffer
	turn uint64
}

func newParityRig(t *testing.T, cfg Config) *parityRig {
	g := &parityRig{t: t, idx: index.New(index.Config{}), pool: poolOf(pools.Prefill, worker("w", 0, 0, 0))}
	g.idx.Owner("w", 0)
	var err error
	if g.Router, err = New(cfg.For(pools.Prefill), g.idx, slog.New(slog.NewTextHandler(&g.logs, nil))); err != nil {
		t.Fatal(err)
	}
	return g
}

// prompt books a new prompt of 100 blocks of which the events told, and answers
// that so many were cached.
func (g *parityRig) prompt(told, cached int) (*Lease, Verdict) {
	g.t.Helper()
	g.turn++
	hashes := chain(g.turn, 100)
	if told > 0 {
		g.idx.Store(g.idx.Owner("w", 0), index.Device, hashes[:told])
	}
	l := book(g.t, g.Router, g.pool, hashes, noon)
	return l, l.Compare(16 * cached)
}

// predicted reports whether the worker is.
func (g *parityRig) predicted() bool { return g.Predicts(g.pool) }

func TestParity(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	if l, v := g.prompt(90, 90); v != Right || l.Overlap != 90 {
		t.Fatalf("%v with an overlap of %d", v, l.Overlap)
	}
	if l, _ := g.prompt(90, 0); l.Compare(-1) != Unsampled {
		t.Error("an answer that says nothing is a sample")
	}
	for n := 1; !g.predicted(); n++ {
		if _, v := g.prompt(90, 0); v != Over || n > 8 {
			t.Fatalf("answer %d: %v, and the worker is not predicted", n, v)
		}
	}
	if p, ok := g.Compared(); !ok || p.Marked != 1 || p.Right != 1 || p.Over != 7 {
		t.Errorf("compared %+v", p)
	}
	if p, ok := g.Parity(Rank{"w", 0}); !ok || p != (RankParity{0, 0, true}) {
		t.Errorf("the rank has %+v", p)
	}
	if logs := g.logs.String(); !strings.Contains(logs, "wrong=7 samples=8 last=over") {
		t.Errorf("the log has\n%s", logs)
	}
	if l, v := g.prompt(90, 90); v != Right || l.Overlap != 0 {
		t.Errorf("marked it is predicted (overlap %d) and compared (%v)", l.Overlap, v)
	}
	for n := 2; g.predicted(); n++ {
		if g.prompt(0, 0); n > 32 { // nothing is learnt of such
			t.Fatal("it does not come back")
		}
		g.prompt(90, 90)
	}
	if p, _ := g.Parity(Rank{"w", 0}); p != (RankParity{32, 0, false}) {
		t.Errorf("the rank has %+v", p)
	}
	if marked, back := strings.Count(g.logs.String(), "are not what"), strings.Count(g.logs.String(), "agree with answers again"); marked != 1 || back != 1 {
		t.Errorf("%d and %d lines in the log:\n%s", marked, back, &g.logs)
	}
}

// A worker that started anew, or whose events are lost, is judged anew.
func TestParityBeginsAnew(t *testing.T) {
	wrong := func(g *parityRig) {
		for range 8 {
			g.prompt(0, 90)
		}
		if !g.predicted() {
			g.t.Fatal("not marked")
		}
	}
	for name, anew := range map[string]func(g *parityRig){
		"another process": func(g *parityRig) {
			w := *g.pool.Members[0].Worker
			w.Incarnation = "next"
			g.pool = poolOf(pools.Prefill, &w)
			g.pool.Version = 2
		},
		"another view": func(g *parityRig) { g.Anew(Rank{"w", 0}) },
		"events lost and whole again": func(g *parityRig) {
			g.Doubt(map[Rank]struct{}{{"w", 0}: {}})
			if l, v := g.prompt(90, 0); v != Unsampled || !g.predicted() || l.believed.held {
				g.t.Errorf("lost events are compared: %v", v)
			}
			g.Doubt(map[Rank]struct{}{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newParityRig(t, DefaultConfig())
			wrong(g)
			anew(g)
			g.prompt(0, 0) // sees the pool
			if p, ok := g.Parity(Rank{"w", 0}); g.predicted() || ok {
				t.Errorf("it is still judged by its past: %+v", p)
			}
			if p, _ := g.Compared(); p.Marked != 0 {
				t.Errorf("%d are marked", p.Marked)
			}
			wrong(g)
		})
	}
}

// An answer of a process that is no more says nothing of its successor, nor one
// of before its events were lost.
func TestParityLeavesOldAnswersOut(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	old := book(t, g.Router, g.pool, chain(1, 100), noon)
	w := *g.pool.Members[0].Worker
	w.Incarnation = "next"
	g.pool = poolOf(pools.Prefill, &w)
	g.pool.Version = 2
	l := book(t, g.Router, g.pool, chain(2, 100), noon)
	if v := old.Compare(1600); v != Unsampled {
		t.Errorf("the old process's answer: %v", v)
	}
	g.Doubt(map[Rank]struct{}{{"w", 0}: {}})
	l.Compare(1600)
	if p, ok := g.Parity(Rank{"w", 0}); ok {
		t.Errorf("an answer from before the loss counts: %+v", p)
	}
}

// Off, in a decode pool, and where there is nothing to fall back to, nothing is
// compared.
func TestParityOff(t *testing.T) {
	off, alone, deaf := DefaultConfig(), DefaultConfig(), DefaultConfig()
	off.Parity = ParityConfig{}
	alone.Predictions = index.PredictorConfig{}
	deaf.KVEvents = false
	for name, cfg := range map[string]Config{"off": off, "no predictions": alone, "no events": deaf} {
		g := newParityRig(t, cfg)
		for range 40 {
			if _, v := g.prompt(90, 0); v != Unsampled {
				t.Fatalf("%s: %v", name, v)
			}
		}
		if _, ok := g.Compared(); ok {
			t.Errorf("%s: something was compared", name)
		}
	}
	for _, wrong := range []ParityConfig{{Window: 65, Least: 1, Wrong: .5}, {Window: 8, Least: 9, Wrong: .5}, {Window: 8, Least: 1, Wrong: 1}} {
		cfg := DefaultConfig()
		cfg.Parity = wrong
		if _, err := New(cfg, nil, nil); err == nil || !strings.Contains(err.Error(), "kv-parity") {
			t.Errorf("%+v: error %v", wrong, err)
		}
	}
}

func TestCompareAllocatesNothing(t *testing.T) {
	g := newParityRig(t, DefaultConfig())
	l, _ := g.prompt(90, 90)
	if n := testing.AllocsPerRun(100, func() { l.Compare(1440) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The engine's blocks are asked for where an answer differs, and excuse it where
// they are large.
func TestParityKnowsTheEnginesBlocks(t *testing.T) {
	cfg := DefaultConfig()
	cfg.EngineBlock = func(w *pools.Worker, rank int) int { return 512 }
	g := newParityRig(t, cfg)
	if _, v := g.prompt(96, 64); v != Right {
		t.Errorf("%v with engine blocks of 512", v)
	}
	if _, v := g.prompt(96, 0); v != Over {
		t.Errorf("%v beyond two of them", v)
	}
}

// BenchmarkParity is what comparing costs a request: a booking out of 64 workers
// that hold half of its prompt, its answer compared, its release.
func BenchmarkParity(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(map[bool]string{false: "off", true: "on"}[on], func(b *testing.B) {
			cfg := DefaultConfig().For(pools.Prefill)
			if !on {
				cfg.Parity = ParityConfig{}
			}
			idx, hashes := index.New(index.Config{}), chain(1, 64)
			ws := fleet("p", 64)
			for _, w := range ws {
				idx.Store(idx.Owner(w.ID, 0), index.Device, hashes[:32])
			}
			r, p := newRouter(b, cfg, idx), poolOf(pools.Prefill, ws...)
			b.ReportAllocs()
			for b.Loop() {
				l, err := r.Reserve(p, Request{ID: "r", ISL: 1030, Hashes: hashes}, noon)
				if err != nil {
					b.Fatal(err)
				}
				l.Compare(512)
				l.Release(noon)
			}
		})
	}
}
