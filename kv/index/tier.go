package index

// Tier is a place in a worker's memory hierarchy where a KV block may be.
type Tier uint8

// The tiers, fastest first.
const (
	Device Tier = iota // the accelerator's own memory
	Host               // the host's memory
	Disk               // a local disk
	Shared             // storage that several workers reach

	Tiers = iota // their number
)
