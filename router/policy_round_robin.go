package router

func init() {
	register("round-robin", "one after the other", func(Config) policy { return roundRobin })
}

// roundRobin takes the candidates one after another. The number comes with the query, so that choosing twice for one
// request chooses the same.
func roundRobin(q *query, ws []candidate) (int, float64, bool) {
	if len(ws) == 0 {
		return 0, 0, false
	}
	q.explain(ws, free)
	return int(q.Nth % uint64(len(ws))), 0, true
}
