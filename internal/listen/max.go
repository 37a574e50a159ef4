package listen

const (
	// shareOfDescriptors is one connection's part of the process's descriptors: a request may need one for its
	// client, one for its prefill worker and one for its decode worker.
	shareOfDescriptors = 3

	// leastMax and mostMax bound [DefaultMax]; mostMax is also what stands where the system has no limit.
	leastMax = 8
	mostMax  = 1 << 18
)

// DefaultMax is how many connections a listener has open at once unless its configuration says otherwise: a third of
// the descriptors that the process may have, between 8 and 262144. Go raises the soft limit of descriptors to the
// hard one when a process starts.
func DefaultMax() int {
	n, ok := Descriptors()
	if !ok || n/shareOfDescriptors > mostMax {
		return mostMax
	}
	return max(leastMax, int(n/shareOfDescriptors))
}
