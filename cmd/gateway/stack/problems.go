package stack

import (
	"cmp"
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
	"github.com/tandem-pd/tandem/kv/follow"
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
func (e *examiner) report() *problems.Report { return e.latest.Load() }

// export registers the metric. Nothing is wrong yet.
func (e *examiner) export(reg prometheus.Registerer) {
	e.latest.Store(&problems.Report{Problems: []problems.Problem{}})
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
	e.latest.Store(&problems.Report{At: now, Problems: e.tracker.Update(e.g.facts(e, now))})
}

// Problems is the answer of GET /problems.
func (g *Gateway) Problems() any { return g.examiner.report() }

// facts gathers what is known now.
func (g *Gateway) facts(e *examiner, now time.Time) *problems.Facts {
	f := &problems.Facts{
		Now: now, Totals: problems.Totals{Queues: g.Flow.Waiting(), RetriesRefused: g.Flow.Retries().Refused},
		Peers: g.member.Peers(), CutOff: g.member.CutOff(), Certificates: g.certs.Ends(), Refused: g.Roster.Refused(),
		Fallback: g.cfg.Flow.DecodeFallback,
	}
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
	if g.remote != nil {
		for _, s := range g.remote.States() {
			if s.Error != "" || s.Circuit == fault.Open {
				f.Indexes = append(f.Indexes, s.Index+": "+cmp.Or(s.Error, "lookups fail"))
			}
		}
	}
	g.addPools(e, f)
	languages, shut := g.languages.Report(), map[string]int{}
	g.Flow.Links(func(model string, slow, failing int) { shut[model] = slow + failing })
	for _, name := range g.Roster.Models() {
		m := problems.Model{Name: name, Trust: languages[name].TrustState, ShutPairs: shut[name]}
		m.Ended, m.Failed, m.TTFT = e.recorder.Minute(name)
		f.Models = append(f.Models, m)
	}
	return f
}

// addPools adds the pools and their workers.
func (g *Gateway) addPools(e *examiner, f *problems.Facts) {
	view, events := g.Roster.View(), g.eventTrust()
	failures := map[string]string{}
	for _, c := range e.breakers.States() {
		if c.Adapter == "" && c.State != fault.Closed {
			failures[c.Worker] = "the latest with " + c.Last.String()
		}
	}
	for _, r := range g.Fleet.Report() {
		p := problems.Pool{Model: r.Model, Role: r.Role, Desired: e.observer.Desired(g.Fleet, r.Model, r.Role, f.Queues[r.Model], f.Now)}
		for _, w := range r.Workers {
			one := problems.Worker{WorkerReport: w, Failure: failures[w.ID], Events: events[w.ID].reason}
			if events[w.ID].state == follow.Silent {
				one.Events = cmp.Or(one.Events, "silent")
			}
			if m, known := view.Lookup(w.ID); known {
				one.Process, one.Context = m.Worker.Incarnation, m.Worker.ContextLength
			}
			p.Workers = append(p.Workers, one)
		}
		f.Pools = append(f.Pools, p)
	}
}
