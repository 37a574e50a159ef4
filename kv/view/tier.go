package view

import (
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
)

// tierSet is the set of a block's places. elsewhere is a medium without a tier.
type tierSet uint8

const (
	onDevice  = tierSet(1) << index.Device
	elsewhere = tierSet(1) << 7
)

// tierOf is the place that an engine means by an event's medium (router semantics §5). What is not local to the engine, a
// peer's or a store's, is shared; where a locality or a medium is not known, it is on no tier.
func tierOf(e *wire.Event) tierSet {
	local := mediumTier(e.Medium)
	switch e.Locality {
	case "", "LOCAL":
		return local
	case "REMOTE":
		if local != elsewhere {
			return 1 << index.Shared
		}
	}
	return elsewhere
}

func mediumTier(medium string) tierSet {
	switch medium {
	case "", "GPU", "DEVICE":
		return 1 << index.Device
	case "CPU", "cpu", "CPU_PINNED", "CPU_TIER1":
		return 1 << index.Host
	case "CPU_TIER2", "DISK", "NVME", "STORAGE", "FS":
		return 1 << index.Disk
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED", "OBJ":
		return 1 << index.Shared
	}
	return elsewhere
}

// tier is the index's tier for a set of one place, if it has one.
func (s tierSet) one() (index.Tier, bool) {
	for t := index.Device; t <= index.Shared; t++ {
		if s == 1<<t {
			return t, true
		}
	}
	return 0, false
}
