package fault

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
)

// played is a pool of workers that serve in virtual time, one prompt and one token a turn.
type played struct {
	rng       *rand.Rand
	now       time.Time
	all       []Observed
	speed     []float64
	standings map[string]Standing
}

func play(n int) *played {
	p := &played{rng: rand.New(rand.NewPCG(1, 2)), now: time.Unix(1e9, 0), speed: make([]float64, n)}
	for i := range n {
		p.speed[i] = 1
		p.all = append(p.all, Observed{fmt.Sprint(i), "sim", new(Pace), new(Pace), new(Share)})
	}
	return p
}

// prefills and tokens are the time that a worker of speed 1 takes for so many prompt tokens, and for a token of one of so
// many requests: a fixed part, and one that grows. The times of real engines spread by a tenth and more.
func prefills(tokens int) float64 { return .02 + float64(tokens)/20_000 }
func tokens(requests int) float64 { return .008 + .0004*float64(requests) }

// turn has each worker compute a prompt and generate a token, and compares them. More may change an observation.
func (p *played) turn(took func(worker int, seconds float64) float64, batch func(worker int) int) {
	p.now = p.now.Add(time.Second)
	for i, w := range p.all {
		noise := func() float64 { return math.Exp(.15*p.rng.NormFloat64()) / p.speed[i] }
		prompt := 64 << p.rng.IntN(8)
		w.Prefill.Observe(prompt, seconds(took(i, prefills(prompt)*noise())), p.now)
		w.Decode.Observe(batch(i), seconds(took(i, tokens(batch(i))*noise())), p.now)
		w.Calls.Observe(false, p.now)
	}
	p.standings = Judge(p.all, p.standings, p.now)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func asIs(_ int, seconds float64) float64 { return seconds }

func eight(int) int { return 8 }

func (p *played) outliers() (found []string) {
	for i := range p.all {
		if s := p.standings[fmt.Sprint(i)]; s.Outlier != "" {
			found = append(found, fmt.Sprintf("%d %s", i, s.Outlier))
		}
	}
	return found
}

// Who is an outlier, and who is none, over ten minutes.
func TestOutliers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		workers int
		set     func(p *played)
		took    func(worker int, seconds float64) float64
		batch   func(worker int) int
		want    []string
	}{
		{name: "equal workers", workers: 8},
		{name: "128 equal workers", workers: 128},
		{name: "speeds that spread", workers: 8, set: func(p *played) {
			for i := range p.speed {
				p.speed[i] = .8 + .05*float64(i)
			}
		}},
		{name: "one at 0.15", workers: 4, set: func(p *played) { p.speed[2] = .15 }, want: []string{"2 slow_prefill"}},
		{name: "one of three", workers: 3, set: func(p *played) { p.speed[0] = .15 }, want: []string{"0 slow_prefill"}},
		{name: "one that decodes slowly", workers: 4, want: []string{"1 slow_decode"}, took: func(worker int, seconds float64) float64 {
			if worker == 1 && seconds < .02 {
				return 4 * seconds
			}
			return seconds
		}},
		{name: "a fast one", workers: 4, set: func(p *played) { p.speed[2] = 3 }},
		{name: "all slow", workers: 4, set: func(p *played) { p.speed = []float64{.15, .15, .15, .15} }},
		{name: "two workers", workers: 2, set: func(p *played) { p.speed[0] = .15 }},
		{name: "two kinds of two", workers: 4, set: func(p *played) {
			p.speed = []float64{1, 1, .3, .3}
			p.all[2].Kind, p.all[3].Kind = "l4", "l4"
		}},
		{name: "a busier one", workers: 4, batch: func(worker int) int { return []int{120, 8, 9, 11}[worker] }},
		{name: "a less busy one", workers: 4, batch: func(worker int) int { return []int{1, 80, 90, 110}[worker] }},
		{name: "a fifth of odd requests", workers: 4, took: func() func(worker int, seconds float64) float64 {
			n := 0
			return func(worker int, seconds float64) float64 {
				if n++; worker == 3 && n/8%5 == 0 {
					return 100 * seconds
				}
				return seconds
			}
		}()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := play(tt.workers)
			if tt.set != nil {
				tt.set(p)
			}
			if tt.took == nil {
				tt.took = asIs
			}
			if tt.batch == nil {
				tt.batch = eight
			}
			wrong := 0
			for turn := range 600 {
				p.turn(tt.took, tt.batch)
				if turn > 60 && !assert.ObjectsAreEqual(tt.want, p.outliers()) {
					wrong++
				}
			}
			assert.Zero(t, wrong, "turns with another result than %v, such as %v: %+v", tt.want, p.outliers(), p.standings)
		})
	}
}

// The figures are the speeds, also where the slow worker has loads that no other one has.
func TestSpeeds(t *testing.T) {
	p := play(5)
	p.speed[4] = .15
	for range 120 {
		p.turn(asIs, func(worker int) int {
			if worker == 4 {
				return 40
			}
			return 10
		})
	}
	assert.InEpsilon(t, .15, p.standings["4"].Prefill, .2, "prefill speed")
	assert.Less(t, p.standings["4"].Decode, .5, "decode speed: at four times the load the others might take four times as long")
	assert.InEpsilon(t, 1, p.standings["1"].Prefill, .2, "another one's")
}

// A worker that slows down is found after a dozen prompts, and one that recovers is no outlier after about as many.
func TestOutlierComesAndGoes(t *testing.T) {
	p := play(4)
	until := func(want int) (turns int) {
		for ; len(p.outliers()) != want && turns < 100; turns++ {
			p.turn(asIs, eight)
		}
		return turns
	}
	for range 300 {
		p.turn(asIs, eight)
	}
	p.speed[1] = .15
	assert.LessOrEqual(t, until(1), 30, "seconds until it is found")
	for range 60 {
		p.turn(asIs, eight)
	}
	p.speed[1] = 1
	assert.LessOrEqual(t, until(0), 60, "seconds until it is an outlier no longer")
}

// A worker without requests keeps its verdict for some minutes and not for ever: it is then tried again.
func TestOutlierIsForgotten(t *testing.T) {
	p := play(4)
	p.speed[1] = .15
	for range 60 {
		p.turn(asIs, eight)
	}
	idle := 0
	for ; len(p.outliers()) > 0 && idle < 1000; idle++ {
		p.now = p.now.Add(time.Second)
		for i, w := range p.all {
			if i != 1 {
				w.Prefill.Observe(512, seconds(prefills(512)), p.now)
				w.Decode.Observe(8, seconds(tokens(8)), p.now)
			}
		}
		p.standings = Judge(p.all, p.standings, p.now)
	}
	assert.True(t, idle > 60 && idle < 300, "forgotten after %d s", idle)
	assert.Zero(t, p.standings["1"].Prefill, "its speed is unknown then")
}

// A worker whose calls fail is an outlier; one whose calls fail as often as everybody's is none.
func TestOutlierByFailures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		failed [4]float64
		want   []string
	}{
		{"one", [4]float64{0, .5, 0, 0}, []string{"1 failing_calls"}},
		{"all", [4]float64{.5, .5, .5, .5}, nil},
		{"one a little", [4]float64{0, .1, 0, 0}, nil},
	} {
		p := play(4)
		for range 300 {
			for i, w := range p.all {
				w.Calls.Observe(p.rng.Float64() < tt.failed[i], p.now)
			}
			p.now = p.now.Add(time.Second)
			p.standings = Judge(p.all, p.standings, p.now)
		}
		assert.Equal(t, tt.want, p.outliers(), tt.name)
	}
}

// What an engine, a clock or a client may make of it harms nothing: a worker's memory is fixed, and no figure is NaN.
func TestPaceTakesAnything(t *testing.T) {
	assert.LessOrEqual(t, unsafe.Sizeof(Pace{}), uintptr(1<<10), "bytes of a worker's leg")
	p := play(3)
	for _, load := range []int{math.MinInt, -1, 0, 1, math.MaxInt} {
		for _, took := range []time.Duration{math.MinInt64, -1, 0, 1, time.Hour, math.MaxInt64} {
			for _, w := range p.all {
				w.Prefill.Observe(load, took, p.now)
				w.Decode.Observe(load, took, p.now.Add(-time.Hour))
			}
		}
	}
	for id, s := range Judge(p.all, nil, p.now.Add(-time.Minute)) {
		assert.False(t, math.IsNaN(s.Prefill+s.Decode) || math.IsInf(s.Prefill+s.Decode, 0), "%s: %+v", id, s)
	}
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.all[0].Prefill.Observe(8, 1, p.now) }), "allocations an observation")
	assert.Empty(t, Judge(nil, nil, p.now))
}

// The worst are ejected, as many as the share allows and one at least; two others always stay.
func TestEjected(t *testing.T) {
	standings := map[string]Standing{
		"a": {Prefill: .3, Outlier: SlowPrefill}, "b": {Decode: .1, Outlier: SlowDecode}, "c": {Decode: 1, Outlier: FailingCalls},
		"d": {Prefill: 1}, "e": {Prefill: 1},
	}
	for _, tt := range []struct {
		able  string
		share float64
		want  string
	}{
		{"abcdefgh", 0, ""}, {"abcdefgh", .1, "c"}, {"abcdefgh", .25, "cb"}, {"abcdefgh", .5, "cba"}, {"defgh", .5, ""},
		{"abcd", .5, "cb"}, {"abc", .5, "c"}, {"ab", .5, ""}, {"a", .5, ""}, {"", .5, ""}, {"bdeghi", .5, "b"},
	} {
		assert.Equal(t, tt.want, strings.Join(Ejected(standings, strings.Split(tt.able, ""), tt.share), ""), "%+v", tt)
	}
}
