package router

func init() {
	register("random", "any worker", func(Config) policy { return random })
}

func random(q *query, ws []candidate) (int, float64, bool) {
	if len(ws) == 0 {
		return 0, 0, false
	}
	q.explain(ws, free)
	return q.rng.IntN(len(ws)), 0, true
}
