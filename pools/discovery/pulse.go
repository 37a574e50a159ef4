package discovery

// pulse is the health of one probed worker, a core: it decides when the worker joins, as which process, and when it
// leaves.
type pulse struct {
	limit    int   // failures in a row that take a worker out
	failures int   // in a row
	in       bool  // the worker is in the roster
	reported facts // what it reported last; zero before
	gone     bool  // since then its port was closed: the next answer is another process's
}

// answered records what the worker reported. fresh: it is a process that was not in the roster.
func (p *pulse) answered(f facts) (fresh bool) {
	f.adapters = "" // others are the same process
	fresh = !p.in || p.gone || p.reported != (facts{}) && p.reported != f
	p.failures, p.in, p.gone, p.reported = 0, true, false, f
	return fresh
}

// suspect records that another process may have replaced the worker: the next answer is queried in full and counts as
// another's.
func (p *pulse) suspect() { p.gone = true }

// alive records an answer that shows only liveness.
func (p *pulse) alive() { p.failures = 0 }

// failed records a missing answer; closed: nothing listens at the address; certain: one failure is enough. out:
// remove the worker now.
func (p *pulse) failed(closed, certain bool) (out bool) {
	p.failures++
	p.gone = p.gone || closed
	if !p.in || p.failures < p.limit && !certain {
		return false
	}
	p.in = false
	return true
}

// steady reports whether a look at the worker's health is enough.
func (p *pulse) steady() bool { return p.in && p.failures == 0 && !p.gone && p.reported != (facts{}) }
