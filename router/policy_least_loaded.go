package router

func init() {
	register("least-loaded", "the worker with the fewest requests in flight", func(Config) policy { return byCost(inFlight) })
}
