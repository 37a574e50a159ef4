package router

func init() {
	register("least-loaded", "fewest requests in flight", func(Config) policy { return byCost(inFlight) })
}
