// Package tier names the places in a worker's memory hierarchy where a KV block may be.
package tier

// Tier is one such place.
type Tier uint8

// The tiers, fastest first.
const (
	Device Tier = iota // the accelerator's own memory
	Host               // the host's memory
	Disk               // a local disk
	Shared             // storage that several workers reach

	Count = iota // tiers
)
