package http1

const (
	// shareOfDescriptors is one connection's part of the process's descriptors: a request may need one for its
	// client, one for its prefill worker and one for its decode worker.
	shareOfDescriptors = 3

	// leastMax and mostMax bound [DefaultMax]; mostMax is also its value on a system without a limit.
	leastMax = 8
	mostMax  = 1 << 18
)

// DefaultMax is the default limit of a listener's open connections: a third of the process's descriptors, between 8 and
// 262144. Go raises the soft limit of descriptors to the hard one at start.
func DefaultMaxConns() int {
	n, ok := Descriptors()
	if !ok || n/shareOfDescriptors > mostMax {
		return mostMax
	}
	return max(leastMax, int(n/shareOfDescriptors))
}
