// Package simulate runs the production cores under virtual time: the queue, the router with its policies, bookings and
// index, and the simulated engine's scheduler and cache, all driven from one heap of events. There is no goroutine and
// no clock in a run; the same configuration and seed give the same figures on every machine.
//
// It leaves out HTTP, tokenizers and the bus, which have no core. A run's gateway therefore takes no time of its own,
// and its KV events arrive when Config.EventDelay.
package simulate

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// Config is one run: a fleet, a gateway in front of it, and the requests.
type Config struct {
	// Stages are sent one after another, each when the one before has ended to its last answer. Most runs have one.
	Stages []Stage
	// Fleet are the workers: of role both, or of prefill and decode.
	Fleet []Group
	// Routers has a Config for each role that the fleet has. Its Seed is the run's.
	Routers map[pools.Role]router.Config
	// ForecastScale is how many times too long prompts are predicted to take; 0 means 1.
	ForecastScale float64
	// Learns makes each gateway predict by observed times, as in production; otherwise by the engines' own model.
	Learns bool
	// Queue is the waiting room, of each gateway.
	Queue queue.Config
	// Replicas are the gateways in front of the fleet.
	Replicas Replicas
	// Planner moves workers between the pools.
	Planner PlannerPlan
	// EventDelay is how long a KV event takes from the engine to the index.
	EventDelay time.Duration
	// SessionIDs has requests name their session.
	SessionIDs bool
	// EventLoss is the share of the engines' steps whose KV events are lost, and UnknownPrompts that of the prompts for
	// which the router looks up nothing. Seed draws both.
	EventLoss, UnknownPrompts float64
	Seed                      uint64
	// Speed divides the times between arrivals; 0 means 1.
	Speed float64
	// Class is a request's policy class; nil for none.
	Class func(q *replay.Request) string
	// Gaps has every answer's gaps between tokens kept until it ends, for Outcome.TBT. It costs time.
	Gaps bool
	// Readings is how many readings of the fleet's state a run takes over its arrivals; 0 for none.
	Readings int
	// Ejection is the share of a pool's workers that each gateway leaves out while they are outliers; 0 for none.
	Ejection float64
	// Name gives the id of a stage's request, which random choices hang on, by
	// the index of each; nil calls them 0-0, 0-1 and so on.
	Name func(stage, index int) string
}

// Stage is a part of a run: requests whose times count from its beginning.
type Stage struct {
	Name     string
	Requests []replay.Request
	Chains   *Chains // of the requests, for the fleet's block size
	// Warm stages are run and not reported.
	Warm bool
}

// run is a run on its way.
type run struct {
	cfg      Config
	epoch    time.Time
	now      int64
	agenda   agenda
	machines []*machine
	byWorker map[string]int32
	fleet    pools.Fleet
	gateways []*gateway
	later    router.LaterError // memory for the routers'

	requests []request
	next     []int32 // of a request: that which follows it in its session, or −1
	byID     map[string]int32
	open     int // of the stage
	stage    int32
	began    int64
	errands  []errand
	parcels  []parcel  // KV events on their way
	free     []int32   // parcels to use again
	letters  []letter  // on their way between gateways
	unused   []int32   // letters to use again
	worked   int64     // when something happened last but between gateways
	posted   uint64    // steps that gave events
	owed     work      // of all open requests
	planning *planning // nil without a planner
	gaps     [][]uint32
	out      *Outcome
}

// parcel is KV events that one step of a machine gave.
type parcel struct {
	machine int32
	events  []engine.Event
}

// Run runs the whole of it. The context is looked at every few thousand events;
// its error, and that of a configuration that cannot work, are the only ones.
func Run(ctx context.Context, cfg Config) (*Outcome, error) {
	r, err := start(cfg)
	if err != nil {
		return nil, err
	}
	return r.out, r.all(ctx)
}

// start makes the fleet and the gateway.
func start(cfg Config) (*run, error) {
	r := &run{cfg: cfg, epoch: time.Unix(1_700_000_000, 0).UTC(), byWorker: map[string]int32{}, out: &Outcome{}}
	if r.cfg.Speed == 0 {
		r.cfg.Speed = 1
	}
	if r.cfg.Name == nil {
		r.cfg.Name = func(stage, index int) string { return strconv.Itoa(stage) + "-" + strconv.Itoa(index) }
	}
	var err error
	if r.machines, err = machines(cfg.Fleet); err != nil {
		return nil, err
	}
	roster, err := roster(r.machines, r.epoch)
	if err != nil {
		return nil, err
	}
	r.fleet = roster.View().Fleet(Model)
	for i, m := range r.machines {
		r.byWorker[m.worker.ID] = int32(i)
	}
	for i := range max(1, cfg.Replicas.Count) {
		if err := r.addGateway(int32(i)); err != nil {
			return nil, err
		}
	}
	if r.planning = newPlanning(r, roster); r.planning != nil {
		r.agenda.add(event{what: replan})
	}
	return r, nil
}

// all runs every stage.
func (r *run) all(ctx context.Context) error {
	for i := range r.cfg.Stages {
		if err := r.runStage(ctx, int32(i)); err != nil {
			return err
		}
		if r.out.GivenUp != nil {
			break
		}
	}
	r.out.Chosen = r.chosen()
	for _, m := range r.machines {
		s := m.core.Stats()
		r.out.Preemptions += s.Preemptions
		r.out.FailedLoads += s.FailedLoads
	}
	if r.planning != nil {
		r.out.Moves, r.out.Moved = r.planning.core.Past(), r.planning.moved
	}
	return nil
}

// at returns a time of the run for the cores.
func (r *run) at(t int64) time.Time { return r.epoch.Add(time.Duration(t)) }

// runStage sends a stage's requests and works until all have ended. Caches and clocks go on from stage to stage.
func (r *run) runStage(ctx context.Context, stage int32) error {
	s := &r.cfg.Stages[stage]
	r.stage, r.began, r.open = stage, r.now, len(s.Requests)
	r.requests = make([]request, len(s.Requests))
	r.byID = make(map[string]int32, len(s.Requests))
	r.next = make([]int32, len(s.Requests))
	latest := map[string]int32{}
	var last int64
	for i := range s.Requests {
		q := &r.requests[i]
		q.Request = &s.Requests[i]
		q.isl = q.InputTokens()
		q.id = r.cfg.Name(int(stage), i)
		q.gateway = r.cfg.Replicas.deal(q.id)
		r.byID[q.id] = int32(i)
		r.next[i] = never
		if q.Session != "" {
			before, follows := latest[q.Session]
			latest[q.Session] = int32(i)
			if follows {
				r.next[before] = int32(i)
				continue
			}
		}
		at := r.now + r.scaled(q.At)
		last = max(last, at)
		r.agenda.add(event{at: at, what: arrive, who: int32(i)})
	}
	if n := r.cfg.Readings; n > 0 && !s.Warm {
		every := max(1, (last-r.now)/int64(n))
		r.agenda.add(event{at: r.now, what: observe, who: int32(min(every/1e6+1, 1<<30)), turn: uint32(stage)})
	}
	for r.open > 0 {
		if r.agenda.empty() || r.now-r.worked > int64(time.Minute) && r.agenda.idle() {
			return errors.New("simulate: requests are open and nothing is due: an engine lost one")
		}
		if r.out.Steps++; r.out.Steps%4096 == 1 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if r.giveUp(last) {
				break
			}
		}
		e := r.agenda.take()
		if r.now = e.at; e.what < receive {
			r.worked = r.now
		}
		r.handle(&e)
		r.settle()
	}
	r.out.Stages = append(r.out.Stages, Span{time.Duration(r.began), time.Duration(r.now)})
	return nil
}

// scaled is a trace's time at the run's speed.
func (r *run) scaled(d time.Duration) int64 { return int64(float64(d) / r.cfg.Speed) }

// handle runs an event.
func (r *run) handle(e *event) {
	switch e.what {
	case arrive:
		r.arrive(e.who)
	case step:
		m := r.machines[e.who]
		if e.turn == m.turn {
			m.wake = never
			r.soil(e.who)
		}
	case kvEvents:
		p := &r.parcels[e.who]
		r.apply(p.machine, p.events)
		p.events = nil
		r.free = append(r.free, e.who)
	case renew:
		r.renew(e.who)
	case impatient:
		r.impatient(e.who, e.turn)
	case expire:
		r.gateways[e.who].expire(e.turn)
	case receive:
		r.deliver(e.who)
	case publish:
		if m := r.gateways[e.who].member; e.at == m.due {
			m.publishDelta()
		}
	case tick:
		r.gateways[e.who].member.tick()
	case replan:
		r.planning.step()
	case switched:
		r.planning.switched(e.who, e.turn)
	case observe:
		if e.turn == uint32(r.stage) {
			r.observe(e.who)
		}
	}
}

// arrive puts a request in the queue.
func (r *run) arrive(i int32) {
	r.requests[i].arrived = r.now
	r.wait(i, false)
}

// wait queues a request for the pools it needs: before others if its prompt is computed.
func (r *run) wait(i int32, computed bool) {
	q, now := &r.requests[i], r.at(r.now)
	name := ""
	if r.cfg.Class != nil {
		name = r.cfg.Class(q.Request)
	}
	item := queue.Item{ID: q.id, ISL: q.isl, Arrival: r.at(q.arrived), Retry: computed, Promoted: &q.promoted}
	q.slices = r.gateways[q.gateway].slicing.On(now)
	if computed {
		ask := r.ask(i)
		item.Lane = ask.Lane()
	}
	if !computed {
		item.Uncached = q.isl - max(q.done.Tokens, r.cached(i, now))
		if q.turns == 0 {
			r.owe(q, item.Uncached)
			if r.planning != nil {
				r.planning.arrived += float64(item.Uncached)
			}
		}
	}
	item.Class, _ = r.cfg.Queue.Classes.Find(name, item.Uncached)
	q.class = int32(item.Class)
	if _, split := r.cfg.Routers[pools.Prefill]; split && q.slices {
		item.Slice = r.gateways[q.gateway].routers.For(Model, pools.Prefill).SliceTokens()
	}
	q.ticket = queue.Ticket[int32]{Item: item, Value: i}
	g := r.gateways[q.gateway]
	if err := g.queue.Push(&q.ticket, now); err != nil {
		r.end(i, shed)
		return
	}
	if g.queue.Gathers(&q.ticket, now) {
		g.wakeLater()
	} else {
		g.drain()
	}
}

// Outcomes of a request other than replay.Answered.
const (
	shed     = "queue_full"
	expired  = "queue_timeout"
	refused  = "refused" // no worker could ever hold it
	loadLost = "load_failed"
)

// ended is the queue's word that a ticket has left it.
func (r *run) ended(t *queue.Ticket[int32], err error) {
	i := t.Value
	var full *queue.FullError
	switch {
	case err == nil:
		r.granted(i)
	case errors.As(err, &full):
		r.end(i, shed)
	case errors.Is(err, queue.ErrExpired):
		r.end(i, expired)
	default:
		r.end(i, refused)
	}
}

// end is the last of a request.
func (r *run) end(i int32, outcome string) {
	q := &r.requests[i]
	r.open--
	q.over = true
	q.done.End()
	r.pay(q, true)
	if n := r.next[i]; n != never {
		r.agenda.add(event{at: r.now + r.scaled(r.requests[n].Delay), what: arrive, who: n})
	}
	if !r.cfg.Stages[r.stage].Warm {
		s := q.sample(outcome, r.now)
		s.Scheduled -= replay.Millis(r.began)
		r.out.Samples = append(r.out.Samples, s)
		r.out.StageOf = append(r.out.StageOf, r.stage)
		r.out.ClassOf = append(r.out.ClassOf, q.class)
		if r.cfg.Gaps {
			r.out.TBT = append(r.out.TBT, longest(q.gaps))
		}
	}
	if q.gaps != nil {
		r.gaps = append(r.gaps, q.gaps[:0])
		q.gaps = nil
	}
}

// observe takes a reading and sets the next, until the stage is over.
func (r *run) observe(everyMillis int32) {
	reading := Reading{At: time.Duration(r.now), Engines: make([]engine.Gauges, len(r.machines))}
	for _, g := range r.gateways {
		reading.Queued += g.queue.Len()
	}
	for i, m := range r.machines {
		reading.Engines[i] = m.core.Gauges()
	}
	r.out.Readings = append(r.out.Readings, reading)
	if r.open > 0 {
		r.agenda.add(event{at: r.now + int64(everyMillis)*1e6, what: observe, who: everyMillis, turn: uint32(r.stage)})
	}
}
