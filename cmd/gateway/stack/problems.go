package stack

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/observe"
	"github.com/tandem-pd/tandem/cmd/gateway/problems"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
)

// examineEvery is how often a gateway examines itself.
const examineEvery = time.Second

// examiner finds a gateway's problems.
type examiner struct {
	g        *Gateway
	observer *observe.Observer
	recorder *console.Recorder
	breakers *fault.Breakers
	buses    []any // of NATS
	tracker  problems.Tracker
	latest   atomic.Pointer[problems.Report]
}

// report returns the problems as of the latest examination. It must not be changed.
func (e *examiner) report() *problems.Report {
	if r := e.latest.Load(); r != nil {
		return r
	}
	return &problems.Report{Problems: []problems.Problem{}} // none yet
}

// export registers the metric.
func (e *examiner) export(reg prometheus.Registerer) {
	s := metrics.In(reg).Snapshot()
	gauge := s.Gauge("problem", "Problems that follow from no other, as GET /problems lists them.", "kind", "severity")
	s.Read(func() {
		counts := map[[2]string]float64{}
		for _, k := range problems.Kinds() {
			counts[[2]string{string(k.Kind), string(k.Severity)}] = 0
		}
		for _, p := range e.report().Problems {
			if p.Because == "" {
				counts[[2]string{string(p.Kind), string(p.Severity)}]++
			}
		}
		for labels, n := range counts {
			gauge.Set(n, labels[0], labels[1])
		}
	})
}

// run examines the gateway until ctx ends.
func (e *examiner) run(ctx context.Context) error {
	t := time.NewTicker(examineEvery)
	defer t.Stop()
	for at := time.Now(); ; {
		guard.Do(e.g.log, "problems", func() { e.examine(at) })
		select {
		case <-ctx.Done():
			return nil
		case at = <-t.C:
		}
	}
}

func (e *examiner) examine(now time.Time) {
	f := e.g.facts(e, now)
	all := e.tracker.Update(f)
	if all == nil {
		all = []problems.Problem{}
	}
	e.latest.Store(&problems.Report{At: now, Problems: all})
}

// Problems is the answer of GET /problems.
func (g *Gateway) Problems() any { return g.examiner.report() }

// facts gathers what is known now.
func (g *Gateway) facts(e *examiner, now time.Time) *problems.Facts {
	f := &problems.Facts{Now: now, CutOff: g.member.CutOff(), Fallback: g.cfg.Flow.DecodeFallback}
	for _, bus := range e.buses {
		if c, ok := bus.(interface{ Connected() bool }); ok && !c.Connected() {
			f.NATS = "the connection is down"
		}
	}
	if g.watcher != nil {
		f.Etcd = g.watcher.Away()
	}
	if g.given.pods != nil {
		f.Pods = g.given.pods.Away()
	}
	for _, p := range g.member.Peers() {
		f.Peers = append(f.Peers, problems.Peer{Name: p.Name, State: p.State, Age: p.Age})
	}
	for use, end := range g.certs.Ends() {
		f.Certificates = append(f.Certificates, problems.Certificate{Use: use, Ends: end})
	}
	if g.remote != nil {
		for _, s := range g.remote.States() {
			if s.Error != "" || s.Circuit == fault.Open {
				f.Indexes = append(f.Indexes, problems.Failure{Name: s.Index, Reason: s.Error})
			}
		}
	}
	for _, r := range g.Roster.Refused() {
		f.Refused = append(f.Refused, problems.Failure{Name: r.Worker.ID, Reason: r.Err.Error()})
	}
	f.RetriesRefused = g.Flow.Retries().Refused
	waiting := g.Flow.Waiting()
	f.Pools = g.poolFacts(e, waiting, now)
	f.Models = g.modelFacts(e, waiting)
	return f
}

// poolFacts describes the pools and their workers.
func (g *Gateway) poolFacts(e *examiner, waiting map[string]queue.Stats, now time.Time) (all []problems.Pool) {
	view, events := g.Roster.View(), g.eventTrust()
	failures := map[string]string{}
	for _, c := range e.breakers.States() {
		if c.Adapter == "" && c.State != fault.Closed {
			failures[c.Worker+" "+string(c.Leg)] = c.Last.String()
		}
	}
	for _, r := range g.Fleet.Report() {
		p := problems.Pool{Model: r.Model, Role: string(r.Role)}
		p.Desired = e.observer.Desired(g.Fleet, r.Model, r.Role, waiting[r.Model], now)
		for i := range r.Workers {
			w := &r.Workers[i]
			one := problems.Worker{
				ID: w.ID, State: w.State, Circuit: string(w.Circuit), Device: w.DeviceClass, PrefillTokens: w.PrefillTokens,
				Requests: w.Requests, Slots: w.MaxNumSeqs * max(1, w.Ranks),
				ActiveBlocks: w.ActiveBlocks, TotalBlock: w.TotalBlocks * max(1, w.Ranks),
			}
			leg := pools.Decode
			if r.Role == pools.Prefill {
				leg = pools.Prefill
			}
			if one.Speed = w.PrefillRate; r.Role != pools.Prefill && w.ITL > 0 {
				one.Speed = 1 / w.ITL
			}
			switch w.Outlier {
			case fault.SlowPrefill:
				one.Slow = w.PrefillSpeed
			case fault.SlowDecode:
				one.Slow = w.DecodeSpeed
			case fault.FailingCalls:
				one.Fails = true
			}
			if t, follows := events[w.ID]; follows {
				one.Events, one.EventsReason = t.state.String(), t.reason
			}
			one.Failure = failures[w.ID+" "+string(leg)]
			if m, known := view.Lookup(w.ID); known {
				one.Process, one.Context = m.Worker.Incarnation, m.Worker.ContextLength
			}
			if w.LostFor != nil {
				one.State = "lost"
			}
			p.Workers = append(p.Workers, one)
		}
		all = append(all, p)
	}
	return all
}

// modelFacts describes the models' queues and outcomes.
func (g *Gateway) modelFacts(e *examiner, waiting map[string]queue.Stats) (all []problems.Model) {
	languages := g.languages.Report()
	shut := map[string]int{}
	g.Flow.Links(func(model string, slow, failing int) { shut[model] = slow + failing })
	for _, name := range g.Roster.Models() {
		q, language := waiting[name], languages[name]
		m := problems.Model{
			Name: name, Waiting: q.Waiting, Oldest: q.Oldest, Granted: q.GrantedTotal, Refused: q.RefusedTotal + q.ExpiredTotal, ShutPairs: shut[name],
			Distrusted: language.Distrusted, Disagree: language.Disagreeing,
		}
		m.Ended, m.Failed, m.TTFT = e.recorder.Minute(name)
		for _, c := range q.Classes {
			m.Classes = append(m.Classes, problems.Class{Name: c.Name, Waiting: c.Waiting, Refused: c.RefusedTotal})
		}
		all = append(all, m)
	}
	return all
}
