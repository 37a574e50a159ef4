package view

import (
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
)

// ages are the blocks that were stored where no removal ever came from, the oldest first: LMCache's and Mooncake's
// connectors in vLLM announce what they store ("cpu") and nothing that they drop. Such a block has gone after maxAge, and
// when there are more than the medium is taken to hold. The first removal shows that its medium needs no ages.
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
	// maxAge is how long a block is taken to be where nothing is removed from.
	maxAge = time.Hour
	// mostAges is how many media are kept apart.
	mostAges = 16
)

// of returns what is kept of a medium; nil for the device, which has its own bound, and for one too many.
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

// add notes that blocks were stored.
func (m *aging) add(hashes []wire.Hash, now time.Time) {
	if m == nil || m.removes {
		return
	}
	for _, h := range hashes {
		m.stored = append(m.stored, aged{h, now})
	}
}

// stop forgets the ages where e removes: these removals are announced.
func (a *ages) stop(e *wire.Event) {
	for _, m := range []*aging{a.of(e), a.of(restoredFrom[tierOf(e)])} {
		if m != nil {
			*m = aging{removes: true}
		}
	}
}

// restoredFrom stand for the media of blocks that were restored, of which the place is known.
var restoredFrom = map[tierSet]*wire.Event{
	onDevice: {}, 1 << index.Host: {Medium: "CPU", Locality: "LOCAL"}, 1 << index.Disk: {Medium: "DISK", Locality: "LOCAL"},
	1 << index.Shared: {Medium: "SHARED", Locality: "LOCAL"}, elsewhere: {Medium: "ELSEWHERE"},
}

// restored notes a block that was restored.
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

// expire returns the blocks that have gone by now.
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

// Age sets the time of the events that follow, and removes the blocks that have gone by then from where no removal is ever
// announced. It returns the removals, as the engine would have sent them.
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
