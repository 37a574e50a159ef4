package engine

// Gauges are a core's present load, for periodic readers.
type Gauges struct {
	Running, Waiting, Fetching int // sequences
	// ActiveBlocks are in use, TotalBlocks all there are.
	ActiveBlocks, TotalBlocks int
}

// Gauges reads the present load, in constant time.
func (c *Core) Gauges() Gauges {
	return Gauges{
		Running: len(c.running), Waiting: c.waiting.n, Fetching: len(c.fetching),
		ActiveBlocks: c.cache.active(), TotalBlocks: len(c.cache.blocks),
	}
}

// Config is the core's configuration with every default filled in.
func (c *Core) Config() Config { return c.cfg }
