package kubernetes

import (
	"cmp"
	"maps"
	"slices"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// maxPods is how many pods are watched; others are ignored.
const maxPods = 4096

// state is a pod's state, a label of the metric kubernetes_pods.
type state string

const (
	taken    state = "taken"    // its workers are in use
	cordoned state = "cordoned" // they were in use; the pod is not ready now or is being deleted
	waiting  state = "waiting"  // it was never ready
	refused  state = "refused"  // it cannot be used: the log has the reason
	ignored  state = "ignored"  // it follows another of its group, or has ended
)

var states = []state{taken, cordoned, waiting, refused, ignored}

// found is the state of one pod and its workers.
type found struct {
	uid     string
	state   state
	workers []discovery.Endpoint
	why     string // why it is cordoned or refused
}

func (f *found) equal(o *found) bool {
	return f.uid == o.uid && f.state == o.state && f.why == o.why &&
		slices.EqualFunc(f.workers, o.workers, func(a, b discovery.Endpoint) bool {
			return a.Worker.Equal(&b.Worker)
		})
}

// judge decides a pod's state, given the previous one (the zero found for a new pod). It is pure.
func judge(p *pod, before found) found {
	now := found{uid: p.Metadata.UID, state: waiting}
	if before.uid != now.uid {
		before = found{}
	}
	known := before.state == taken || before.state == cordoned
	switch {
	case p.follower(), p.ended():
		now.state = ignored
		return now
	case p.deleted() && known: // its requests continue; its labels no longer matter
		now.state, now.workers, now.why = cordoned, before.workers, "its pod is being deleted"
		return now
	case p.deleted():
		return now
	case !p.ready() && known:
		now.state, now.workers, now.why = cordoned, before.workers, "its pod is not ready"
		return now
	case !p.ready():
		return now
	}
	workers, err := p.workers()
	if err != nil {
		now.state, now.why = refused, err.Error()
		return now
	}
	now.state, now.workers = taken, workers
	return now
}

// pods holds the state of all pods, by name.
type pods struct {
	by   map[string]found
	over bool // more than maxPods
}

// put adds or updates a pod.
func (ps *pods) put(p *pod) (changed bool) {
	name := p.Metadata.Name
	before, known := ps.by[name]
	if !known && len(ps.by) >= maxPods {
		ps.over = true
		return false
	}
	now := judge(p, before)
	ps.by[name] = now
	return !known || !now.equal(&before)
}

func (ps *pods) remove(name string) (changed bool) {
	_, changed = ps.by[name]
	delete(ps.by, name)
	return changed
}

// replace applies the full list.
func (ps *pods) replace(all []pod) (changed bool) {
	ps.over = false
	before := ps.by
	ps.by = make(map[string]found, len(all))
	for i := range all {
		p := &all[i]
		if len(ps.by) >= maxPods {
			ps.over = true
			break
		}
		ps.by[p.Metadata.Name] = judge(p, before[p.Metadata.Name])
	}
	return !maps.EqualFunc(before, ps.by, func(a, b found) bool { return a.equal(&b) })
}

// endpoints returns every worker in use or cordoned, by name.
func (ps *pods) endpoints() []discovery.Endpoint {
	var all []discovery.Endpoint
	for _, name := range slices.Sorted(maps.Keys(ps.by)) {
		all = append(all, ps.by[name].workers...)
	}
	return all
}

func (ps *pods) count() map[state]int {
	n := map[state]int{}
	for _, f := range ps.by {
		n[f.state]++
	}
	return n
}

// Sink receives cordons, removals and refusals of a [Finder]. A [pools.Source] is one.
type Sink interface {
	// Hold cordons a worker, present or future, or lifts that cordon.
	Hold(id string, on bool)
	// Remove removes a worker at once, and its refusal.
	Remove(id string)
	// Refuse reports a worker that cannot be used, and why.
	Refuse(w pools.Worker, reason error)
}

// applied is the state that a sink has received.
type applied struct {
	known   map[string]bool   // by id: whether it is cordoned
	refused map[string]string // by id: why
}

// transition is the difference between two states of a sink.
type transition struct {
	hold, lift, gone []string // ids
	refuse, forgive  []string
	reasons          map[string]string // by id, of hold and refuse
	next             applied
}

// next returns the transition from a sink's state to that of the pods.
func (ps *pods) next(from applied) transition {
	to := transition{reasons: map[string]string{}, next: applied{known: map[string]bool{}, refused: map[string]string{}}}
	for name, f := range ps.by {
		for _, e := range f.workers {
			id := e.Worker.ID
			now := f.state == cordoned
			to.next.known[id] = now
			switch was := from.known[id]; {
			case now && !was:
				to.hold = append(to.hold, id)
				to.reasons[id] = f.why
			case !now && was:
				to.lift = append(to.lift, id)
			}
		}
		if f.state == refused {
			id := cmp.Or(name, f.uid)
			to.next.refused[id] = f.why
			if from.refused[id] != f.why {
				to.refuse = append(to.refuse, id)
				to.reasons[id] = f.why
			}
		}
	}
	for id := range from.known {
		if _, still := to.next.known[id]; !still {
			to.gone = append(to.gone, id)
		}
	}
	for id := range from.refused {
		if _, still := to.next.refused[id]; !still {
			to.forgive = append(to.forgive, id)
		}
	}
	for _, ids := range [][]string{to.hold, to.lift, to.gone, to.refuse, to.forgive} {
		slices.Sort(ids)
	}
	return to
}
