package view

import (
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
)

// ages has the blocks of media that never announced a removal, oldest first: LMCache's and Mooncake's connectors in vLLM
// announce stored blocks ("cpu") but not dropped ones. Such a block expires after maxAge, or if there are more than the
// medium should hold. The first removal shows that a medium needs no ages.
type ages map[medium]*aging

type aging struct {
	removes bool
	stored  []aged
	first   int // in stored
}

type aged struct {
	hash wire.Hash
	at   time.Time
}

const (
	// maxAge is how long a block counts as stored in such a medium.
	maxAge = time.Hour
	// mostAges is how many media are tracked.
	mostAges = 16
)

// of returns the state of a medium; nil for the device, which has its own bound, and beyond mostAges.
func (a *ages) of(e *wire.Event) *aging {
	if tierOf(e) == onDevice {
		return nil
	}
	in := medium{e.Medium, e.Locality}
	m := (*a)[in]
	if m == nil && len(*a) < mostAges {
		if *a == nil {
			*a = ages{}
		}
		m = &aging{}
		(*a)[in] = m
	}
	return m
}

// add records stored blocks.
func (m *aging) add(hashes []wire.Hash, now time.Time) {
	if m == nil || m.removes {
		return
	}
	for _, h := range hashes {
		m.stored = append(m.stored, aged{h, now})
	}
}

// stop drops the ages of the media that e removes from: they announce removals.
func (a *ages) stop(e *wire.Event) {
	for _, m := range []*aging{a.of(e), a.of(restoredFrom[tierOf(e)])} {
		if m != nil {
			*m = aging{removes: true}
		}
	}
}

// restoredFrom stands for the media of restored blocks, by their place.
var restoredFrom = map[tierSet]*wire.Event{
	onDevice: {}, 1 << index.Host: {Medium: "CPU", Locality: "LOCAL"}, 1 << index.Disk: {Medium: "DISK", Locality: "LOCAL"},
	1 << index.Shared: {Medium: "SHARED", Locality: "LOCAL"}, elsewhere: {Medium: "ELSEWHERE"},
}

// restored records a restored block.
func (a *ages) restored(h wire.Hash, held tierSet, now time.Time) {
	if held == onDevice {
		return
	}
	for place, e := range restoredFrom {
		if held&place != 0 && place != onDevice {
			a.of(e).add([]wire.Hash{h}, now)
		}
	}
}

func (m *aging) expire(now time.Time, most int) (gone []wire.Hash) {
	for m.first < len(m.stored) && (len(m.stored)-m.first > most || now.Sub(m.stored[m.first].at) >= maxAge) {
		gone = append(gone, m.stored[m.first].hash)
		m.first++
	}
	if m.first > len(m.stored)/2 {
		m.stored, m.first = append(m.stored[:0], m.stored[m.first:]...), 0
	}
	return gone
}

// Age sets the time of the next events and removes expired blocks. It returns the removals as events of the engine.
func (v *View) Age(now time.Time) (gone []wire.Event) {
	v.now = now
	for in, m := range v.ages {
		if hashes := m.expire(now, v.bound.ageless()); len(hashes) > 0 {
			e := wire.Event{Kind: wire.Removed, Hashes: hashes, Medium: in.name, Locality: in.locality}
			v.remove(&e)
			gone = append(gone, e)
		}
	}
	return gone
}
