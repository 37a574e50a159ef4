package simulate

// occasion is the kind of an event.
type occasion uint8

const (
	arrive    occasion = iota // a request comes
	step                      // an engine's own next step
	kvEvents                  // KV events reach the index
	renew                     // a decode engine renews its leases
	expire                    // a request has waited too long
	observe                   // the series take a reading
	impatient                 // a request may have waited long enough for its KV

	receive // a letter reaches a gateway: this and what follows is no request's
	publish // a gateway publishes its changes
	tick    // a gateway does what is due

	replan   // the planner decides
	switched // an engine has changed its role
)

// event is something that will happen. Those of one time happen in the order in which they were entered.
type event struct {
	at   int64 // nanoseconds since the start
	seq  uint64
	what occasion
	who  int32 // request, engine, gateway, batch of KV events or letter
	turn uint32
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// agenda is the one heap of all that will happen, four children to a node: fewer cache lines a level than two.
type agenda struct {
	heap    []event
	seq     uint64
	between int // those that are no request's
}

func (a *agenda) add(e event) {
	a.seq++
	e.seq = a.seq
	if e.what >= receive {
		a.between++
	}
	a.heap = append(a.heap, e)
	at := len(a.heap) - 1
	for at > 0 {
		parent := (at - 1) / 4
		if !e.before(&a.heap[parent]) {
			break
		}
		a.heap[at] = a.heap[parent]
		at = parent
	}
	a.heap[at] = e
}

func (a *agenda) empty() bool { return len(a.heap) == 0 }

// idle reports whether nothing will happen but between gateways.
func (a *agenda) idle() bool { return len(a.heap) == a.between }

// take removes the first event; there is one.
func (a *agenda) take() event {
	first := a.heap[0]
	if first.what >= receive {
		a.between--
	}
	last := len(a.heap) - 1
	e := a.heap[last]
	a.heap = a.heap[:last]
	if last == 0 {
		return first
	}
	at := 0
	for {
		least := 4*at + 1
		if least >= last {
			break
		}
		end := min(least+4, last) // of the node's own children
		for child := least + 1; child < end; child++ {
			if a.heap[child].before(&a.heap[least]) {
				least = child
			}
		}
		if !a.heap[least].before(&e) {
			break
		}
		a.heap[at] = a.heap[least]
		at = least
	}
	a.heap[at] = e
	return first
}
