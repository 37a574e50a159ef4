package console

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
)

type snapshot struct {
	at     time.Time
	Models []model
	phases [Over]int
	drawn  []Request
	ended  string // revision of the finished requests
	// Gateways are the gateways of the group, with a sum.
	Gateways []gateway
	alarm    alarm
	View     view
}

// model is the pools of one model, with its queue.
type model struct {
	Name   string
	Pools  []pool
	Queue  queue.Stats
	Line   queue.Line
	Latest point
	Active bool // some request has ended
}

// pool is the workers of one role.
type pool struct {
	Role    pools.Role
	Workers []worker
}

type worker struct {
	observe.WorkerReport
	Model  string
	Role   pools.Role
	Events string // the state of its KV events
	Gone   bool   // it has left its pool
	Queued int    // its prompt tokens, in percent of a full bar
}

// Word returns the worker's state, or its circuit's if that is more specific.
func (w *worker) Word() string {
	switch {
	case w.Gone:
		return "gone"
	case w.State == pools.Up.String() && w.Circuit != fault.Closed:
		return "circuit " + strings.ReplaceAll(string(w.Circuit), "_", "-")
	case w.State == pools.Up.String() && w.Outlier != "":
		if w.Ejected {
			return strings.ReplaceAll(w.Outlier, "_", " ") + ", ejected"
		}
		return strings.ReplaceAll(w.Outlier, "_", " ")
	}
	return w.State
}

// Tone returns the state's style: good, busy, warn, bad.
func (w *worker) Tone() string {
	switch w.Word() {
	case "gone", "lost", pools.Down.String(), "circuit " + string(fault.Open):
		return "bad"
	case pools.Up.String():
		if w.Used() >= 90 || w.MaxNumSeqs > 0 && w.Requests >= w.slots() {
			return "busy"
		}
		return "good"
	}
	return "warn"
}

// Mark returns a sign for the state, besides its colour.
func (w *worker) Mark() string {
	return map[string]string{"good": "●", "busy": "◆", "warn": "▲", "bad": "✕"}[w.Tone()]
}

func (w *worker) slots() int { return w.MaxNumSeqs * max(1, w.Ranks) }

// total returns the worker's KV blocks over its ranks; 0 if unknown.
func (w *worker) total() int { return w.TotalBlocks * max(1, w.Ranks) }

// Used and Filled return the booked and the cached share of its KV blocks, in percent; 0 if the total is unknown.
func (w *worker) Used() int   { return w.percent(w.ActiveBlocks) }
func (w *worker) Filled() int { return w.percent(w.CachedBlocks) }

func (w *worker) percent(blocks int) int {
	if w.total() == 0 {
		return 0
	}
	return min(100, blocks*100/w.total())
}

// Text returns a figure as text, for pages and events.
func (w *worker) Text(field string) string {
	switch field {
	case "tone":
		return w.Tone()
	case "word":
		return w.Word()
	case "mark":
		return w.Mark()
	case "brief": // for the picture
		if w.Ejected {
			return "ejected"
		}
		brief, _, _ := strings.Cut(w.Outlier, "_")
		return cmp.Or(brief, w.Word())
	case "requests":
		if w.MaxNumSeqs > 0 {
			return fmt.Sprintf("%d / %s", w.Requests, count(w.slots()))
		}
		return strconv.Itoa(w.Requests)
	case "tokens":
		return count(w.PrefillTokens)
	case "used":
		return strconv.Itoa(w.Used())
	case "usedText":
		if w.total() == 0 {
			return count(w.ActiveBlocks)
		}
		return fmt.Sprintf("%d %%", w.Used())
	case "cached":
		if w.total() == 0 {
			return count(w.CachedBlocks)
		}
		return fmt.Sprintf("%d %%", w.Filled())
	case "queued":
		return strconv.Itoa(w.Queued)
	case "speed":
		if math.IsInf(w.pace(), 1) {
			return "–"
		}
		return fmt.Sprintf("%.2f", w.pace())
	case "ttft":
		return unlessZero(w.TTFT, short)
	case "itl":
		return unlessZero(w.ITL, short)
	case "throughput":
		return unlessZero(w.TokensPerSecond, perSecond)
	case "failed":
		return unlessZero(w.Failed, percent)
	case "circuit":
		return cmp.Or(string(w.Circuit), "–")
	case "events":
		return cmp.Or(w.Events, "none")
	}
	return "" // "short"
}

// fields are the figures that change while a page is open.
var fields = []string{"tone", "word", "brief", "mark", "requests", "tokens", "queued", "used", "usedText", "cached", "speed", "ttft", "itl",
	"throughput", "failed", "circuit", "events"}

// Key returns the name of a figure in events.
func (w *worker) Key(field string) string { return "w." + w.Model + "." + w.ID + "." + field }

// count formats a number for a narrow column.
func count(n int) string {
	switch {
	case n >= 10_000_000:
		return fmt.Sprintf("%d M", n/1_000_000)
	case n >= 1_000_000:
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%d k", n/1000)
	}
	return strconv.Itoa(n)
}

// look reads the fleet. With flights, for events, finished flights are returned once.
func (c *Console) look(now time.Time, flights bool) *snapshot {
	s, byModel := &snapshot{at: now, alarm: c.alarm()}, c.workers(now)
	waiting, lines, r := c.src.Flow.Waiting(), c.src.Flow.Lines(), c.recorder
	s.phases, s.ended = r.phases(), r.families.revision()
	if flights {
		s.drawn = r.flights()
	}
	r.mu.Lock()
	for name, m := range byModel {
		if of := r.models[name]; of != nil && len(of.points) > 0 {
			m.Latest, m.Active = of.points[len(of.points)-1], true
		}
	}
	r.mu.Unlock()
	for name, m := range byModel {
		m.Queue, m.Line = waiting[name], lines[name]
		slices.SortFunc(m.Pools, func(a, b pool) int { return cmp.Compare(rank(a.Role), rank(b.Role)) })
		s.Models = append(s.Models, *m)
	}
	slices.SortFunc(s.Models, func(a, b model) int { return strings.Compare(a.Name, b.Name) })
	if c.src.Peers != nil {
		s.Gateways = c.gateways(c.src.Peers(), now)
	}
	return s
}

// workers returns the pools by model, with workers that left them recently.
func (c *Console) workers(now time.Time) map[string]*model {
	events := map[string]string{}
	if c.src.Events != nil {
		events = c.src.Events()
	}
	reports := c.src.Fleet.Report()
	present, byModel := map[string]bool{}, map[string]*model{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range reports {
		m := byModel[p.Model]
		if m == nil {
			m = &model{Name: p.Model}
			byModel[p.Model] = m
		}
		own := pool{Role: p.Role}
		for _, r := range p.Workers {
			w := worker{WorkerReport: r, Model: p.Model, Role: p.Role, Events: events[r.ID]}
			if r.State == pools.Down.String() || r.LostFor != nil {
				w.Events, w.Circuit = "–", "" // no longer valid
			}
			own.Workers = append(own.Workers, w)
			present[w.Key("")] = true
			c.known[w.Key("")] = seen{w, now}
		}
		own.fill()
		m.Pools = append(m.Pools, own)
	}
	for key, k := range c.known {
		switch m := byModel[k.Model]; {
		case present[key]:
		case m == nil || now.Sub(k.at) > goneFor:
			delete(c.known, key)
		default:
			k.Gone, k.Requests, k.PrefillTokens, k.ActiveBlocks, k.CachedBlocks, k.Events = true, 0, 0, 0, 0, ""
			for i := range m.Pools {
				if p := &m.Pools[i]; p.Role == k.Role {
					p.Workers = append(p.Workers, k.worker)
					slices.SortFunc(p.Workers, func(a, b worker) int { return strings.Compare(a.ID, b.ID) })
				}
			}
		}
	}
	return byModel
}

// fullBar is the least number of prompt tokens of a full bar.
const fullBar = 16 << 10

// fill compares the queued prompt tokens of a pool's workers.
func (p *pool) fill() {
	most := fullBar
	for i := range p.Workers {
		most = max(most, p.Workers[i].PrefillTokens)
	}
	for i := range p.Workers {
		p.Workers[i].Queued = p.Workers[i].PrefillTokens * 100 / most
	}
}

// Workers returns how many workers there are.
func (s *snapshot) Workers() (n int) {
	for i := range s.Models {
		for j := range s.Models[i].Pools {
			n += len(s.Models[i].Pools[j].Workers)
		}
	}
	return n
}

// rank orders roles as requests meet them.
func rank(role pools.Role) int {
	return slices.Index([]pools.Role{pools.Prefill, pools.Decode, pools.Both}, role)
}

// live returns every text that changes while a page is open.
func (s *snapshot) live() map[string]string {
	all := map[string]string{}
	for p, n := range s.phases {
		all["phase."+Phase(p).String()] = strconv.Itoa(n)
	}
	for i := range s.Models {
		m := &s.Models[i]
		for key, text := range m.texts() {
			all["m."+m.Name+"."+key] = text
		}
		for j := range m.Pools {
			for k := range m.Pools[j].Workers {
				w := &m.Pools[j].Workers[k]
				for _, field := range fields {
					all[w.Key(field)] = w.Text(field)
				}
			}
		}
	}
	for _, g := range s.Gateways {
		for field, text := range g.texts {
			all[g.Key(field)] = text
		}
	}
	s.alarm.live(all)
	all["time"] = date(s.at, clock)
	return all
}

// Phase returns how many requests are in a phase.
func (s *snapshot) Phase(name string) int {
	for p, n := range s.phases {
		if Phase(p).String() == name {
			return n
		}
	}
	return 0
}

// Text returns one of the model's figures.
func (m *model) Text(field string) string { return m.texts()[field] }

// Key returns the name of a figure in events.
func (m *model) Key(field string) string { return "m." + m.Name + "." + field }

func (m *model) texts() map[string]string {
	p := &m.Latest
	var oldest time.Duration
	for _, class := range m.Line.Classes {
		oldest = max(oldest, class.Oldest)
	}
	all := map[string]string{
		"waiting": strconv.Itoa(m.Queue.Waiting), "waitingTokens": count(int(m.Queue.WaitingTokens)),
		"uncached":   count(int(m.Queue.WaitingUncachedTokens)),
		"retryAfter": fmt.Sprintf("%d s", int(m.Line.RetryAfter.Seconds())), "oldest": short(oldest.Seconds()),
		"granted": fmt.Sprintf("%.1f/s", m.Queue.GrantedPerSecond), "bytes": count(int(m.Queue.WaitingBytes)),
		"refusedTotal": count(int(m.Queue.RefusedTotal)), "expiredTotal": count(int(m.Queue.ExpiredTotal)),
		"ttft50": "–", "ttft99": "–", "itl50": "–", "itl99": "–", "requests": "–", "tokens": "–",
		"refused": "–", "failed": "–", "hits": "–", "predicted": "–",
	}
	if m.Active {
		all["ttft50"], all["ttft99"], all["itl50"], all["itl99"] = short(p.ttft50), short(p.ttft99), short(p.itl50), short(p.itl99)
		all["requests"], all["tokens"] = perSecond(p.requests), perSecond(p.tokens)
		all["refused"], all["failed"] = perSecond(p.refused), perSecond(p.failed)
		all["hits"], all["predicted"] = percent(p.hits), percent(p.predicted)
	}
	return all
}

// revisions returns a revision per page, which changes with its contents.
func (s *snapshot) revisions() map[string]string {
	h := fnv.New32a()
	queues := fnv.New32a()
	for i := range s.Models {
		m := &s.Models[i]
		fmt.Fprintln(h, m.Name, m.Active)
		fmt.Fprintln(queues, m.Name)
		for _, class := range m.Line.Classes {
			fmt.Fprintln(queues, class.Name, class.Retry, class.Strict, class.Priority, class.Waiting, class.Oldest.Round(time.Second))
		}
		for j := range m.Pools {
			for k := range m.Pools[j].Workers {
				w := &m.Pools[j].Workers[k]
				fmt.Fprintln(h, w.Role, w.ID, w.needsLook()) // which has it first
			}
		}
	}
	for _, g := range s.Gateways {
		fmt.Fprintln(h, g.Name)
	}
	fleet := strconv.FormatUint(uint64(h.Sum32()), 36)
	return map[string]string{
		"fleet": fleet, "now": fleet, "queue": strconv.FormatUint(uint64(queues.Sum32()), 36),
		"requests": s.ended, "cache": s.ended,
	}
}

// flights returns the paths of drawn requests.
func (s *snapshot) flights() []flight {
	var all []flight
	for i := range s.drawn {
		r := &s.drawn[i]
		f := flight{Name: r.Name, Model: r.Model, Ago: s.at.Sub(r.Arrived).Milliseconds(), Over: r.Phase == Over, Bad: r.Phase == Over && !r.ok()}
		f.Way = append(f.Way, event{Node: "queue"})
		for _, step := range r.Steps {
			e := event{Node: step.Worker, At: step.From.Milliseconds()}
			switch {
			case step.Phase == Waiting && step.Attempt <= 1: // it has been there from the beginning
				continue
			case step.Phase == Waiting:
				e.Node = "queue"
			case step.Handed && step.First > 0:
				e.Took = (step.First - step.From).Milliseconds()
			}
			f.Way = append(f.Way, e)
		}
		if f.Over {
			f.Way = append(f.Way, event{Node: "client", At: r.Total.Milliseconds()})
		}
		all = append(all, f)
	}
	return all
}
