package fault

// run counts the calls that failed in a row: since the latest sign of life whose
// call has not failed. A sign counts as soon as it comes, since a long answer is not
// to leave its worker in doubt until it ends; that of a call which then fails is
// taken back, and the row goes on as if it had not been. The zero run is empty.
//
// Signs are a list in the order in which they came, each with the failures since.
// One whose call has ended well stands for good, and those before it are dropped:
// the list holds live calls, and one more.
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

// sign takes a call's sign of life in, and returns it for the call's end.
func (r *run) sign() *sign {
	s := &sign{before: r.latest()}
	s.before.after = s
	r.last = s
	return s
}

// stand says that s's call has ended and not failed.
func (r *run) stand(s *sign) {
	if s.before != nil {
		s.before.after, s.before = nil, nil
	}
}

// fail takes a failure in. The call's sign is taken back; nil where it gave none.
func (r *run) fail(s *sign) {
	if s != nil {
		s.before.failures += s.failures
		s.before.after = s.after
		if s.after != nil {
			s.after.before = s.before
		}
		if r.last == s {
			r.last = s.before
		}
	}
	r.latest().failures++
}

// latest is the sign that the row counts from.
func (r *run) latest() *sign {
	if r.last == nil {
		r.last = &sign{}
	}
	return r.last
}
