package router

func init() {
	// What clients named is the only candidate by the time it picks.
	register("direct", "the worker that the request names; a leg left open as in kv", func(c Config) policy { return policies["kv"].make(c) })
}
