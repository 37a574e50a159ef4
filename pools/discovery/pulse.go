package discovery

// pulse is the health of one worker that is asked about itself: a core. It says when the worker comes in, as which
// process, and when it goes.
type pulse struct {
	limit    int   // failures in a row that take a worker out
	failures int   // in a row
	in       bool  // the worker is in the roster
	reported facts // what it reported last; zero before
	gone     bool  // since then its port was closed: the next answer is another process's
}

// join takes the worker in before it has reported anything.
func (p *pulse) join() { p.in = true }

// answered takes what the worker reported. fresh says that it is a process that was not in the roster.
func (p *pulse) answered(f facts) (fresh bool) {
	f.adapters = "" // others are the same process
	fresh = !p.in || p.gone || p.reported != (facts{}) && p.reported != f
	p.failures, p.in, p.gone, p.reported = 0, true, false, f
	return fresh
}

// suspect takes that another process may have come in the worker's place: the next answer is asked for in full, and counts
// as another's.
func (p *pulse) suspect() { p.gone = true }

// alive takes that the worker answered what says nothing but that it is alive.
func (p *pulse) alive() { p.failures = 0 }

// failed takes that the worker did not answer; closed, that nothing listens at its address; certain, that no more failures are
// needed. out says that it is to leave the roster now.
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
