package simulate

import (
	"errors"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

func (r *run) chain(i int32) []uint64 { return r.cfg.Stages[r.stage].Chains.of[i] }

// drawn reports whether the n-th of something is among a share of all.
func drawn(share float64, seed, n uint64) bool {
	return share > 0 && float64(fold(seed, n)>>11)/(1<<53) < share
}

// ask is a request's query for the choice of its workers.
func (r *run) ask(i int32) placement.Ask {
	q := &r.requests[i]
	ask := placement.Ask{Model: Model, Request: router.Request{
		ID: q.id, Attempt: 1, ISL: q.isl, DecodeLater: true, Done: q.done, Later: &r.later,
	}}
	if r.cfg.SessionIDs {
		ask.Session = q.Session
	}
	if !drawn(r.cfg.UnknownPrompts, r.cfg.Seed, uint64(i)) {
		ask.Hashes, ask.Sliced = r.chain(i), q.slices
	}
	if q.remote != nil {
		ask.Want, ask.Partner = placement.Decode, r.machines[r.byWorker[q.remote.EngineID]].worker
	}
	if q.slow {
		ask.OneLeg = placement.ReasonSlow
	}
	return ask
}

// cached is the longest prefix in tokens that a worker which computes prompts holds.
func (r *run) cached(i int32, now time.Time) int {
	ask := r.ask(i)
	route := r.gateways[r.requests[i].gateway].placer.Route(r.fleet, &ask, now)
	return route.Cached(now)
}

// reserve is the drain step of one request.
func (r *run) reserve(i int32, d queue.Drain[int32], now time.Time) error {
	ask := r.ask(i)
	ask.Drain, ask.PlanOnly = d.Round, d.Planning
	r.gateways[r.requests[i].gateway].outliers.judge(now)
	placed, err := r.gateways[r.requests[i].gateway].placer.Book(r.fleet, &ask, nil, now)
	if _, later := errors.AsType[queue.Later](err); !later && placement.Waits(err) {
		return queue.ErrWait
	}
	r.requests[i].p, r.requests[i].d = placed.Prefill.Lease, placed.Decode.Lease
	return err
}

// granted starts a request that has its workers.
func (r *run) granted(i int32) {
	q := &r.requests[i]
	if q.turns == 0 {
		q.granted = r.now
	}
	q.turns++
	q.sent = r.now
	if q.d != nil {
		q.decodeWorker = q.d.Worker.ID
		q.decode = r.byWorker[q.decodeWorker]
	}
	switch {
	case q.p != nil:
		q.prefillWorker = q.p.Worker.ID
		r.add(i, r.byWorker[q.prefillWorker], engine.Request{MaxTokens: 1, Pin: q.p.Slice == 0})
	case q.remote != nil:
		r.pull(i)
	default:
		r.add(i, q.decode, engine.Request{MaxTokens: q.OutputTokens})
	}
}

// errand is work for this instant: a machine steps, after it got a leg if there is one.
type errand struct {
	machine int32
	request int32 // whose leg; −1 for none
	leg     engine.Request
}

// add sends a leg to an engine. Those of one instant come one after another: an
// engine that is idle begins with the first.
func (r *run) add(i, machine int32, leg engine.Request) {
	q := &r.requests[i]
	leg.ID, leg.PromptTokens, leg.Hashes, leg.IgnoreEOS = q.id, q.isl, r.chain(i), true
	if q.p != nil && q.p.Slice > 0 {
		leg.PromptTokens, leg.Hashes = q.p.Slice, leg.Hashes[:q.p.Slice/q.p.Worker.BlockSize]
	}
	r.errands = append(r.errands, errand{machine, i, leg})
}

// soil notes that a machine has to step.
func (r *run) soil(machine int32) {
	if m := r.machines[machine]; !m.dirty {
		m.dirty = true
		r.errands = append(r.errands, errand{machine: machine, request: never})
	}
}

// settle runs this instant's errands, and those that they cause.
func (r *run) settle() {
	for n := 0; n < len(r.errands); n++ {
		e := r.errands[n]
		m := r.machines[e.machine]
		if e.request == never {
			m.dirty = false
		} else if err := m.core.Add(e.leg); err != nil {
			r.release(&r.requests[e.request])
			r.end(e.request, refused)
			continue
		}
		r.step(e.machine)
	}
	clear(r.errands)
	r.errands = r.errands[:0]
}

// step takes one turn of a machine's engine and handles the results.
func (r *run) step(i int32) {
	m := r.machines[i]
	now := r.at(r.now)
	res := m.core.Step(now)
	if len(res.Events) > 0 && m.worker.Role != pools.Decode {
		r.post(i, res.Events)
	}
	for k := range res.Outputs {
		r.output(i, &res.Outputs[k])
	}
	for _, f := range res.Fetches {
		p := r.byWorker[f.Remote.EngineID]
		wait, err := r.machines[p].core.Fetch(f.Remote, f.PromptTokens, f.Tokens, now)
		if err != nil {
			m.core.FetchFailed(f.ID, err)
		} else {
			m.core.Fetched(f.ID, wait, now)
		}
		r.soil(i)
	}
	for _, remote := range res.Releases {
		p := r.byWorker[remote.EngineID]
		r.machines[p].core.Release(remote.RequestID)
		r.soil(p)
	}
	r.schedule(i, res.Next)
}

// schedule puts a machine's next step on the agenda.
func (r *run) schedule(i int32, next time.Time) {
	m := r.machines[i]
	wake := int64(never)
	if !next.IsZero() {
		wake = max(int64(next.Sub(r.epoch)), r.now)
	}
	if wake == m.wake {
		return
	}
	m.wake = wake
	m.turn++
	if wake != never {
		r.agenda.add(event{at: wake, what: step, who: i, turn: m.turn})
	}
}

// post sends KV events to the index.
func (r *run) post(machine int32, events []engine.Event) {
	if r.posted++; drawn(r.cfg.EventLoss, r.cfg.Seed+1, r.posted) {
		return
	}
	if r.cfg.EventDelay == 0 {
		r.apply(machine, events)
		return
	}
	var n int32
	if last := len(r.free) - 1; last >= 0 {
		n, r.free = r.free[last], r.free[:last]
	} else {
		n = int32(len(r.parcels))
		r.parcels = append(r.parcels, parcel{})
	}
	r.parcels[n] = parcel{machine, append([]engine.Event(nil), events...)}
	r.agenda.add(event{at: r.now + int64(r.cfg.EventDelay), what: kvEvents, who: n})
}

// output deals with a token, or the end, of one leg.
func (r *run) output(machine int32, o *engine.Output) {
	i, ok := r.byID[o.ID]
	if !ok {
		return
	}
	q := &r.requests[i]
	if q.p != nil {
		r.prefilled(i, machine, o)
		return
	}
	r.machines[machine].latest = r.now
	links := r.gateways[q.gateway].links
	if o.Reason == engine.Aborted && q.slow && q.remote != nil {
		links.Left(&q.transfer, r.at(r.now))
		q.remote = nil
		r.release(q)
		r.wait(i, true)
		return
	}
	if o.Reason == engine.LoadFailed || o.Reason == engine.Aborted {
		links.Left(&q.transfer, r.at(r.now))
		r.release(q)
		r.end(i, loadLost)
		return
	}
	now := r.at(r.now)
	if q.tokens == 0 {
		q.first = r.now
		r.pay(q, false)
		if links.Arrived(&q.transfer, now, now); q.remote == nil {
			q.cached = o.Cached
			links.Computed(q.d.Worker, q.isl, time.Duration(r.now-q.sent))
			r.gateways[q.gateway].speeds.observe(q.d, o.Cached, time.Duration(r.now-q.sent), now)
		}
		q.d.PrefillDone(now)
		q.d.Bind(now)
		r.gateways[q.gateway].drain()
	} else {
		r.machines[machine].tokens++
		r.machines[machine].gaps += r.now - q.last
		r.gateways[q.gateway].outliers.token(r, machine, r.now-q.last)
		if r.cfg.Gaps {
			if q.gaps == nil {
				q.gaps = r.spareGaps()
			}
			q.gaps = append(q.gaps, uint32((r.now-q.last)/1000))
		}
	}
	q.last = r.now
	q.tokens = o.Generated
	if grown := q.tokens / q.d.Worker.BlockSize; grown > q.grown {
		q.d.Grow(grown-q.grown, now)
		q.grown = grown
	}
	if o.Reason != engine.Unfinished {
		r.machines[machine].answers++
		r.release(q)
		r.end(i, replay.Answered)
	}
}

// prefilled hands a prompt's KV over to decode, or has the rest of it computed.
func (r *run) prefilled(i, machine int32, o *engine.Output) {
	q := &r.requests[i]
	slice := q.p.Slice
	sliced := slice > 0
	if q.turns == 1 || q.cached > o.Cached {
		q.cached = o.Cached
	}
	if o.Reason != engine.Aborted {
		r.machines[machine].answers++
		r.machines[machine].rate.Observe(q.p.BacklogTokens, time.Duration(r.now-q.sent))
		q.p.Bind(r.at(r.now))
		r.gateways[q.gateway].speeds.observe(q.p, o.Cached, time.Duration(r.now-q.sent), r.at(r.now))
		r.gateways[q.gateway].outliers.prefilled(q.p.Worker, q.p.BacklogTokens, time.Duration(r.now-q.sent), r.at(r.now))
	}
	stayed := q.done.Tokens > 0 && q.done.Worker == q.p.Worker.ID
	if stayed && o.Reason != engine.Aborted {
		r.gateways[q.gateway].slicing.Note(q.sliced, max(0, q.done.Tokens-o.Cached), r.at(r.now))
	}
	lease := q.p
	q.p = nil
	if sliced && o.Reason != engine.Aborted {
		q.sliced, q.done = slice-o.Cached, lease.Computed(q.done, r.at(r.now))
		r.wait(i, false)
		return
	}
	lease.Release(r.at(r.now))
	if o.Pinned == nil {
		r.gateways[q.gateway].drain()
		r.release(q)
		r.end(i, loadLost)
		return
	}
	q.prefilled = r.now
	q.remote = &engine.Remote{EngineID: r.machines[machine].worker.ID, RequestID: o.Pinned.RequestID, BlockIDs: [][]int32{o.Pinned.BlockIDs}}
	if q.d == nil {
		r.wait(i, true)
		return
	}
	r.gateways[q.gateway].drain()
	r.pull(i)
}

// pull makes decode pull prefill's blocks.
func (r *run) pull(i int32) {
	q := &r.requests[i]
	g, p := r.gateways[q.gateway], r.machines[r.byWorker[q.remote.EngineID]].worker
	g.links.Begin(&q.transfer, p, q.d.Worker, q.isl, 0, r.at(r.now))
	q.pulls, q.pulled = q.pulls+1, r.now
	if patience := q.transfer.Patience(); patience > 0 {
		r.agenda.add(event{at: r.now + int64(patience), what: impatient, who: i, turn: q.pulls})
	}
	r.add(i, q.decode, engine.Request{MaxTokens: q.OutputTokens, Remote: q.remote})
	if d := r.machines[q.decode]; !d.beats {
		d.beats = true
		r.agenda.add(event{at: r.now + int64(d.core.Config().HeartbeatInterval), what: renew, who: q.decode})
	}
}

// impatient has a request's decode worker compute the prompt itself if that is better than to wait on.
func (r *run) impatient(i int32, pull uint32) {
	q := &r.requests[i]
	if q.over || q.pulls != pull || q.tokens > 0 || q.slow || q.remote == nil {
		return
	}
	alive := r.machines[q.decode].latest >= q.pulled // else it may hang
	if links := r.gateways[q.gateway].links; !alive || !links.Leave(&q.transfer, r.at(r.now)) {
		r.agenda.add(event{at: r.now + int64(q.transfer.Patience()), what: impatient, who: i, turn: pull})
		return
	}
	q.slow = r.machines[q.decode].core.Abort(q.id)
	r.soil(q.decode)
}

// renew has a decode engine renew the leases that its sequences depend on.
func (r *run) renew(machine int32) {
	m := r.machines[machine]
	awaited := m.core.Awaited()
	m.beats = len(awaited) > 0
	if !m.beats {
		return
	}
	for _, remote := range awaited {
		p := r.byWorker[remote.EngineID]
		r.machines[p].core.Heartbeat(remote.RequestID, r.at(r.now))
		r.soil(p)
	}
	r.agenda.add(event{at: r.now + int64(m.core.Config().HeartbeatInterval), what: renew, who: machine})
}

// release releases the bookings.
func (r *run) release(q *request) {
	now := r.at(r.now)
	if q.p != nil {
		q.p.Release(now)
		q.p = nil
	}
	if q.d != nil {
		q.d.Release(now)
		q.d = nil
	}
	r.gateways[q.gateway].drain()
}

func (r *run) spareGaps() []uint32 {
	if last := len(r.gaps) - 1; last >= 0 {
		g := r.gaps[last]
		r.gaps = r.gaps[:last]
		return g
	}
	return make([]uint32, 0, 512)
}
