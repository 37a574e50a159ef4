package decode

import (
	"math/bits"
	"time"
)

// gaps is a histogram of how long a worker's streams are silent between two reads that bring events. It is a pure
// value; its owner guards it.
//
// It has four buckets an octave from about 4 ms up, so a quantile is exact to a quarter. All counts are halved after
// every gapMemory gaps, so old gaps weigh next to nothing at any rate, without a clock.
type gaps struct {
	counts [gapBuckets]uint32
	total  uint32
}

const (
	gapBuckets = 88      // up to 2^42 ns, 73 minutes; longer ones count as that
	gapMemory  = 1 << 14 // gaps, about 16 s of a worker that generates 1,000 events a second
	gapLeast   = 100     // gaps needed for a 99th percentile
)

func gapBucket(d time.Duration) int {
	u := uint64(max(d, 0)) >> 20 // 1.05 ms
	if u < 4 {
		return int(u)
	}
	e := bits.Len64(u) - 1
	return min((e-1)<<2|int(u>>(e-2)&3), gapBuckets-1)
}

// gapAbove returns the end of a bucket: every gap in it is shorter.
func gapAbove(bucket int) time.Duration {
	if bucket++; bucket < 4 {
		return time.Duration(bucket) << 20
	}
	e := bucket>>2 + 1
	return time.Duration(4+bucket&3) << (e - 2 + 20)
}

func (g *gaps) observe(bucket uint8, n uint32) {
	g.counts[bucket] += n
	g.total += n
	if g.total < gapMemory {
		return
	}
	g.total = 0
	for i := range g.counts {
		g.counts[i] /= 2
		g.total += g.counts[i]
	}
}

// p99 returns a length that 99 of 100 gaps stay below, 0 if too few were observed.
func (g *gaps) p99() time.Duration {
	if g.total < gapLeast {
		return 0
	}
	above := g.total / 100 // so many may be longer
	for i := gapBuckets - 1; ; i-- {
		if g.counts[i] > above {
			return gapAbove(i)
		}
		above -= g.counts[i]
	}
}
