package fault

// run counts the calls that failed in a row: since the latest sign of life whose call has not failed. A sign counts
// at once, since a long answer must not keep its worker suspect until it ends. The sign of a call that then fails is
// taken back, and the row continues as if there had been no sign. The zero run is empty.
//
// Signs are a list in order of arrival, each with the number of failures since. A sign whose call ended well is
// final, and those before it are dropped: the list holds live calls, and one more.
type run struct{ last *sign }

// sign is one call's sign of life.
type sign struct {
	failures      int // after it and before the next
	before, after *sign
}

// length is how many calls have failed in a row.
func (r *run) length() int {
	if r.last == nil {
		return 0
	}
	return r.last.failures
}

// add adds a call's first sign of life, s, which is in no run yet.
func (r *run) add(s *sign) {
	s.before = r.latest()
	s.before.after = s
	r.last = s
}

// stand makes s final: its call has ended and not failed.
func (r *run) stand(s *sign) {
	if s.before != nil {
		s.before.after, s.before = nil, nil
	}
}

// takeBack takes back the sign of a call that failed: the row goes on as if there had been none.
func (r *run) takeBack(s *sign) {
	s.before.failures += s.failures
	s.before.after = s.after
	if s.after != nil {
		s.after.before = s.before
	}
	if r.last == s {
		r.last = s.before
	}
}

func (r *run) fail() { r.latest().failures++ }

// warn has the row be at least n failures long.
func (r *run) warn(n int) {
	s := r.latest()
	s.failures = max(s.failures, n)
}

// latest is the sign that the row counts from.
func (r *run) latest() *sign {
	if r.last == nil {
		r.last = &sign{}
	}
	return r.last
}
