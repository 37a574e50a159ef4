package router

func init() {
	register("power-of-two", "the less loaded of two random workers", func(Config) policy { return powerOfTwo })
}

// powerOfTwo draws two different candidates, all pairs equally likely, and takes the one with fewer requests in flight
// (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001). Its cost is that number. It avoids the
// most loaded worker without sending every request of a moment to the least loaded one.
func powerOfTwo(q *query, ws []candidate) (int, float64, bool) {
	q.explain(ws, inFlight)
	switch len(ws) {
	case 0:
		return 0, 0, false
	case 1:
		return 0, inFlight(q, &ws[0]), true
	}
	i, j := q.rng.IntN(len(ws)), q.rng.IntN(len(ws)-1)
	if j >= i {
		j++
	}
	if inFlight(q, &ws[j]) < inFlight(q, &ws[i]) {
		i = j
	}
	return i, inFlight(q, &ws[i]), true
}
