package events

// Record is what an engine holds, as its own events say it, in a form that can be told to another process: applied to
// an empty [View], what [Record.Batches] returns makes it what a View is that was applied the same events. It is a
// core, for one goroutine at a time, and costs about 200 bytes a block of 16 tokens.
type Record struct{ mirror *mirror }

// NewRecord returns the record of an engine that holds nothing.
func NewRecord() *Record { return &Record{newMirror()} }

// Apply takes events in, in their order, and keeps nothing of them.
func (r *Record) Apply(events []Event) { r.mirror.apply(events) }

// Blocks is how many of the engine's blocks are recorded.
func (r *Record) Blocks() int { return len(r.mirror.blocks) }

// Batches returns the events that make an empty cache what is recorded, as batches that [DecodeBatch] reads, each of
// at most limit bytes unless a single block takes more.
func (r *Record) Batches(limit int) [][]byte {
	p := packer{limit: limit, rank: NoRank}
	r.mirror.image().tell(&p)
	return p.out
}
