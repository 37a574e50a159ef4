package queue

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// families are classes of one bucket, each a family of its name.
func families(quanta ...int) *Classes {
	c := &Classes{DefaultFamily: "a", Buckets: []Bucket{{0, "all"}}}
	for k, q := range quanta {
		name := string(rune('a' + k))
		c.List = append(c.List, PolicyClass{Name: name, Family: name, Bucket: "all", Quantum: q})
	}
	return c
}

// sent is when a request came, and from which sender.
type sent struct {
	at   time.Duration
	from int
}

// server computes one prompt at a time, so many tokens a second, in virtual time.
type server struct {
	t     *testing.T
	core  *Core[sent]
	rate  float64
	now   time.Duration
	free  time.Duration
	waits map[int][]time.Duration // by sender, of those that were granted
	spent map[int]int             // tokens, by sender
	full  map[int]int
}

func newServer(t *testing.T, cfg Config, rate float64) *server {
	s := &server{t: t, rate: rate, waits: map[int][]time.Duration{}, spent: map[int]int{}, full: map[int]int{}}
	s.core = newCore(t, cfg, func(t *Ticket[sent], err error) {
		switch {
		case err == nil:
			s.waits[t.Value.from] = append(s.waits[t.Value.from], s.now-t.Value.at)
			s.spent[t.Value.from] += t.Uncached
		case isFull(err):
			s.full[t.Value.from]++
		}
	})
	return s
}

func (s *server) push(it Item, from int) {
	if err := s.core.Push(&Ticket[sent]{Item: it, Value: sent{s.now, from}}, start.Add(s.now)); err != nil {
		s.full[from]++
	}
	s.drain()
}

func (s *server) drain() {
	s.core.Drain(start.Add(s.now), func(t *Ticket[sent], d Drain[sent]) error {
		if s.now < s.free {
			return ErrWait
		}
		s.free = s.now + time.Duration(float64(t.Uncached)/s.rate*1e9)
		return nil
	})
}

// run lets each sender send an item at its interval, for so long.
func (s *server) run(length time.Duration, every map[int]time.Duration, item func(from int) Item) {
	next := map[int]time.Duration{}
	for end := s.now + length; s.now < end; {
		to := end
		if s.core.Len() > 0 {
			to = min(to, max(s.free, s.now+1))
		}
		for k := range every {
			to = min(to, max(next[k], s.now))
		}
		s.now = to
		s.drain()
		for k := range len(every) + 8 {
			if gap, sends := every[k]; sends && next[k] <= s.now {
				next[k] = s.now + gap
				s.push(item(k), k)
			}
		}
	}
}

func mean(all []time.Duration) (mean, most time.Duration) {
	for _, d := range all {
		mean += d
		most = max(most, d)
	}
	return mean / time.Duration(max(1, len(all))), most
}

// A class that sends twenty times what the workers compute delays one that stays within its share by a turn, refuses it no
// place, and gets all that the other leaves.
func TestAFloodDelaysItsOwnClass(t *testing.T) {
	const rate = 10_000 // tokens a second; a prompt takes 100 ms
	every := map[int]time.Duration{0: 5 * time.Millisecond, 1: 333 * time.Millisecond}
	prompt := func(class int) Item { return Item{Class: class, ISL: 1000, Uncached: 1000, Bytes: 4000} }
	for _, policy := range Orders() {
		cfg := DefaultConfig()
		cfg.Policy = policy
		alone := newServer(t, cfg, rate)
		alone.run(time.Minute, every, func(int) Item { return prompt(0) })
		cfg.Classes = families(1000, 1000)
		s := newServer(t, cfg, rate)
		s.run(time.Minute, every, prompt)
		m, most := mean(s.waits[1])
		flood, _ := mean(s.waits[0])
		without, _ := mean(alone.waits[1])
		t.Logf("%s: 3 requests a second next to a flood of 200 wait %v on average and %v at most; the flood %v; %d and %d refused; tokens %v; in one class they wait %v and %d are refused",
			policy, m, most, flood, s.full[1], s.full[0], s.spent, without, alone.full[1])
		assert.True(t, most <= 250*time.Millisecond && s.full[1] == 0 && len(s.waits[1]) >= 179,
			"%s: %v at most, %d refused, %d granted", policy, most, s.full[1], len(s.waits[1]))
		assert.GreaterOrEqual(t, s.spent[0]+s.spent[1], 598_000, "%s tokens of 600,000 computed: workers were idle", policy)
	}
}

// While all wait, each class gets its quantum's share of tokens, whatever its prompts' lengths and order.
func TestSharesAreOfTokens(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Limit, cfg.Classes = 30_000, families(4096, 1024, 512)
	cfg.Classes.List[1].Policy = "wspt"
	cfg.Timeout = time.Hour
	s := newServer(t, cfg, 10_000)
	lengths := []int{9000, 300, 2500}
	n := 0
	s.run(4*time.Minute, map[int]time.Duration{0: 100 * time.Millisecond, 1: 20 * time.Millisecond, 2: 40 * time.Millisecond},
		func(k int) Item {
			n++
			return Item{Class: k, Uncached: lengths[k] * (1 + n%3) / 2}
		})
	sum := s.spent[0] + s.spent[1] + s.spent[2]
	for k, want := range []float64{8. / 11, 2. / 11, 1. / 11} {
		got := float64(s.spent[k]) / float64(sum)
		t.Logf("class %d: %.4f of %d tokens, its quantum is %.4f of all", k, got, sum, want)
		assert.True(t, got >= want*.985 && got <= want*1.015, "class %d has %.4f of the tokens, want %.4f", k, got, want)
	}
}

// What comes amid a drain is held up by what waits there, unless it goes before it in whatever class.
func TestClassesAmidADrain(t *testing.T) {
	for _, c := range []struct {
		it   Item
		asks bool
	}{{Item{Class: 1}, false}, {Item{Class: 0, Priority: 5}, true}, {Item{Class: 1, Strict: 1}, true}, {Item{Class: 1, Retry: true}, true}} {
		cfg := DefaultConfig()
		cfg.Classes = families(10, 10)
		core := newCore(t, cfg, func(*Ticket[string], error) {})
		first, late := &Ticket[string]{Item: Item{ID: "first"}, Value: "first"}, &Ticket[string]{Item: c.it}
		late.Lane = "x"
		push(t, core, start, first)
		core.waitsOn(core.next(start), ErrWait, start)
		push(t, core, start, late)
		head := core.next(start)
		assert.True(t, (head == late) == c.asks, "%+v: %v is asked", c.it, head)
		core.stop(start)
	}
}

// Each class has its share of the queue, and a body may always wait that the whole queue has room for.
func TestClassesShareTheLimits(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Limit, cfg.Bytes, cfg.Classes = 10, 10_000, families(400, 100)
	core := newCore(t, cfg, func(*Ticket[int], error) {})
	waits := func(_ *Ticket[int], d Drain[int]) error { return ErrWait }
	push := func(class int, bytes int64) *FullError {
		err := core.Push(&Ticket[int]{Item: Item{Class: class, Bytes: bytes}}, start)
		core.Drain(start, waits)
		full, _ := err.(*FullError)
		return full
	}
	taken := 0
	for push(0, 100) == nil {
		taken++
	}
	full := push(0, 100)
	assert.True(t, taken == 8 && full.Limit == LimitRequests && full.Class == "a" &&
		strings.Contains(full.Error(), "class a has its share of --queue-limit"),
		"%d places of 10, then %v", taken, full)
	assert.Nil(t, push(1, 8000), "the first of the other class")
	full = push(1, 1000)
	assert.True(t, full != nil && full.Limit == LimitBytes && full.Class == "b", "its second: %v", full)
	want := []ClassStats{{Name: "a", Waiting: 8, RefusedTotal: 2}, {Name: "b", Waiting: 1, RefusedTotal: 1}}
	assert.Equal(t, want, core.Stats(start).Classes)
}

// A promoted request overtakes those of its class alone, and makes none of another class late.
func TestPromotionStaysInItsClass(t *testing.T) {
	for _, c := range []struct {
		other time.Duration // what the other class's request takes, planned before the long one
		first string
	}{{300 * time.Millisecond, "long"}, {700 * time.Millisecond, "a"}} {
		cfg := DefaultConfig()
		cfg.Target, cfg.Classes = 2*time.Second, families(10, 10)
		core, tickets, _ := newLine(t, cfg)
		for _, id := range []string{"a", "other", "long"} {
			tickets[id] = &Ticket[string]{Item: Item{ID: id, Uncached: 10}}
			if id == "other" {
				tickets[id].Class = 1
			} else if id == "a" {
				tickets[id].Target = time.Minute
			}
			push(t, core, start, tickets[id])
		}
		takes := map[string]time.Duration{"a": 300 * time.Millisecond, "other": c.other, "long": 1200 * time.Millisecond}
		for range 2 {
			core.Drain(start, planner(200*time.Millisecond, takes))
		}
		assert.Equal(t, c.first, core.head().ID, "the other takes %v is first", c.other)
	}
}

// Neither a drain nor a push allocates, with classes or without.
func TestClassesTakeNoMemory(t *testing.T) {
	for _, classes := range []*Classes{nil, families(10, 20, 30)} {
		cfg := DefaultConfig()
		cfg.Classes = classes
		core := newCore(t, cfg, func(*Ticket[int], error) {})
		tickets := make([]Ticket[int], 30)
		work := func() {
			for i := range tickets {
				tickets[i] = Ticket[int]{Item: Item{Uncached: 10 + i}}
				if classes != nil {
					tickets[i].Class = i % 3
				}
				_ = core.Push(&tickets[i], start)
			}
			core.Drain(start, func(_ *Ticket[int], d Drain[int]) error { return nil })
		}
		work()
		assert.EqualValues(t, 0, testing.AllocsPerRun(50, work), "classes %v allocations", classes != nil)
	}
}

const classesFile = `
default_policy_family: standard
uncached_isl_buckets:
  - {min_tokens: 0, bucket: cached}
  - {min_tokens: 3072, bucket: uncached}
policy_classes:
  - {name: cached, policy_family: standard, cache_bucket: cached, queue_policy: wspt, quantum: 2048}
  - {name: uncached, policy_family: standard, cache_bucket: uncached, quantum: 512}
  - {name: latency_cached, policy_family: latency, cache_bucket: cached, quantum: 4096}
  - {name: latency_uncached, policy_family: latency, cache_bucket: uncached, quantum: 1024}
  - {name: agents, quantum: 4096}
`

func TestFindAClass(t *testing.T) {
	c, err := ParseClasses("classes.yaml", []byte(classesFile))
	require.NoError(t, err)
	for _, test := range []struct {
		name     string
		uncached int
		want     string
		known    bool
	}{
		{"", 0, "cached", false}, {"", 3071, "cached", false}, {"", 3072, "uncached", false}, {"", -1, "cached", false},
		{"latency", 10, "latency_cached", true}, {"latency", 1 << 20, "latency_uncached", true}, {"standard", 5000, "uncached", true},
		{"agents", 1 << 20, "agents", true},
		{"latency_cached", 1 << 20, "uncached", false}, // a class of a family cannot be named past its buckets
		{"another's", 1, "cached", false},
	} {
		if i, known := c.Find(test.name, test.uncached); c.Name(i) != test.want || known != test.known {
			t.Errorf("%q with %d uncached tokens is of class %s, known %t", test.name, test.uncached, c.Name(i), known)
		}
	}
	var none *Classes
	i, known := none.Find("latency", 1)
	assert.True(t, i == 0 && !known && none.Name(0) == "", "no classes have a class")
}

func TestClassesFileNamesWhatIsWrong(t *testing.T) {
	for _, test := range []struct{ from, to, want string }{
		{"quantum: 512}", "quantum: 0}", "policy_classes[1].quantum: is 0, of class uncached: from 1 to"},
		{"quantum: 512}", "quantum: 512, weight: 3}", "policy_classes[1].weight"},
		{"quantum: 512}", "quantum: 512, prefill_busy_threshold: 3}",
			"policy_classes[1].prefill_busy_threshold: is not supported: --router-queue-threshold"},
		{"quantum: 512}", "quantum: 512, request_queue_limit_per_worker: 3}", "share of --queue-limit"},
		{"default_policy_family: standard", "default_policy_family: gold", `default_policy_family: "gold" is the policy_family of no class`},
		{"default_policy_family: standard", "models: {}", "models: is not supported"},
		{"queue_policy: wspt", "queue_policy: best", `policy_classes[0].queue_policy: "best" is none of fcfs, hrrn, lcfs, wspt`},
		{"name: uncached", "name: cached", "policy_classes[1].name: cached is another class's name"},
		{"name: uncached", "name: a b", "policy_classes[1].name: \"a b\" is no name"},
		{"min_tokens: 3072", "min_tokens: 0", "uncached_isl_buckets[1].min_tokens: is 0, not above"},
		{"min_tokens: 0", "min_tokens: 5", "uncached_isl_buckets[0].min_tokens: is 5: the first bucket is from 0"},
		{"bucket: uncached}\n", "bucket: cached}\n", "uncached_isl_buckets[1].bucket: cached is another"},
		{"cache_bucket: uncached, quantum: 512", "quantum: 512", `policy_classes[1].cache_bucket: "" is none of`},
		{"cache_bucket: uncached, quantum: 512", "cache_bucket: cached, quantum: 512", "are those of class cached"},
		{"policy_family: latency, cache_bucket: uncached, ", "", "the family latency has no class for the bucket uncached"},
		{"policy_family: latency, cache_bucket: uncached", "cache_bucket: uncached", `policy_classes[3].policy_family: "" is no name`},
	} {
		text := strings.Replace(classesFile, test.from, test.to, 1)
		_, err := ParseClasses("classes.yaml", []byte(text))
		assert.ErrorContains(t, err, test.want, "%s in place of %s", test.to, test.from)
		assert.ErrorContains(t, err, "classes.yaml:")
	}
	for _, text := range []string{"", "policy_classes: []", "policy_classes: 5", "- a",
		"default_policy_family: a\npolicy_classes: [{name: a, quantum: 1}]", "policy_classes: [5]"} {
		_, err := ParseClasses("classes.yaml", []byte(text))
		assert.Error(t, err, "%q is a file of classes", text)
	}
	many := families()
	for i := range maxClasses + 1 {
		many.List = append(many.List, PolicyClass{Name: fmt.Sprint(i), Quantum: 1})
	}
	assert.ErrorContains(t, many.Validate(), "policy_classes: has 65 classes")
	cfg := DefaultConfig()
	cfg.Classes = &Classes{}
	_, err := New[struct{}, struct{}](cfg, nil, nil)
	assert.Error(t, err, "a queue was made with no class")
}

func FuzzParseClasses(f *testing.F) {
	f.Add([]byte(classesFile))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ParseClasses("f", text)
		if err != nil {
			return
		}
		for _, name := range []string{"", "standard", "x"} {
			for _, n := range []int{-1, 0, 1 << 40} {
				i, _ := c.Find(name, n)
				require.True(t, i >= 0 && i < len(c.List), "%q of %d tokens is of class %d", name, n, i)
			}
		}
	})
}
