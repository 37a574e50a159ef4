package problems

import (
	"maps"
	"math"
	"slices"
	"time"
)

const (
	// lately is the time over which refusals are counted.
	lately = 30 * time.Second
	// flapWindow is the time in which a worker's returns are counted.
	flapWindow = 10 * time.Minute
	// rolloutWindow is how long a restarted worker is compared with those before.
	rolloutWindow = time.Hour
	// joining is how long after the gateway's start workers may join and count as those before.
	joining = time.Minute
	// usualTime is the time constant of a worker's usual speed.
	usualTime = 5 * time.Minute
	// sameFor is how long a problem may be away and keep its age.
	sameFor = time.Minute
)

// mostKept bounds the workers that are kept after they have left.
const mostKept = 4096

// Tracker keeps what a moment does not show: ages, returns of workers, speeds before a restart, refusals. Its owner
// calls Update about once a second and guards it. The zero value is ready.
type Tracker struct {
	since   map[string]span  // problems by kind and subject
	workers map[string]*past // by id; one that was replaced by its id and process
	totals  []Totals         // lately
	began   time.Time
}

// span is the first and the latest time that something was seen.
type span struct{ first, last time.Time }

// past is what is known of one worker.
type past struct {
	pool, process string
	span               // of the process
	served        bool // at the latest update
	returns       []time.Time
	usual         float64 // speed, 0 unknown
}

// Update returns the problems of now, never nil. It completes f.
func (t *Tracker) Update(f *Facts) []Problem {
	if t.since == nil {
		t.since, t.workers, t.began = map[string]span{}, map[string]*past{}, f.Now
	}
	f.at = f.Now
	t.totals = slices.DeleteFunc(append(t.totals, f.Totals), func(was Totals) bool { return f.Now.Sub(was.at) > lately })
	f.before = t.totals[0]
	for i := range f.Pools {
		for j := range f.Pools[i].Workers {
			t.meet(f, &f.Pools[i], &f.Pools[i].Workers[j])
		}
	}
	maps.DeleteFunc(t.workers, func(_ string, p *past) bool { return f.Now.Sub(p.last) > rolloutWindow })
	for i := range f.Pools {
		t.compare(f, &f.Pools[i])
	}
	all := Find(f)
	for i := range all {
		key := string(all[i].Kind) + " " + all[i].Subject
		s, known := t.since[key]
		if s.last = f.Now; !known {
			s.first = f.Now
		}
		all[i].Since, t.since[key] = s.first, s
	}
	maps.DeleteFunc(t.since, func(_ string, s span) bool { return f.Now.Sub(s.last) > sameFor })
	return all
}

// meet updates one worker. A return is a new process, or serving again.
func (t *Tracker) meet(f *Facts, p *Pool, w *Worker) {
	known := t.workers[w.ID]
	switch {
	case known == nil || w.Process != "" && known.process != w.Process:
		began := &past{pool: p.device(w), process: w.Process, span: span{first: f.Now}}
		if known != nil {
			began.returns = append(known.returns, f.Now)
			if len(t.workers) < mostKept {
				t.workers[w.ID+"\x00"+known.process] = known
			}
		}
		known, t.workers[w.ID] = began, began
	case w.serves() && (!known.served || f.Now.Sub(known.last) > lately):
		known.returns = append(known.returns, f.Now)
	}
	known.served, known.last = w.serves(), f.Now
	known.returns = slices.DeleteFunc(known.returns, func(at time.Time) bool { return f.Now.Sub(at) > flapWindow })
	w.returns = len(known.returns)
	w.young = known.first.Sub(t.began) > joining && f.Now.Sub(known.first) < rolloutWindow
	switch speed := p.speed(w); {
	case speed == 0 || !w.serves():
	case known.usual == 0:
		known.usual = speed
	default:
		known.usual += (speed - known.usual) * (1 - math.Exp(-1/usualTime.Seconds()))
	}
}

// device names the workers that a worker of the pool is compared with.
func (p *Pool) device(w *Worker) string { return p.Model + "/" + string(p.Role) + " " + w.DeviceClass }

// compare sets the speed that a pool's young workers, of one device, are compared with: that of the processes before.
func (t *Tracker) compare(f *Facts, p *Pool) {
	young := slices.IndexFunc(p.Workers, func(w Worker) bool { return w.young })
	if young < 0 {
		return
	}
	speeds, key := []float64(nil), p.device(&p.Workers[young])
	for _, old := range t.workers {
		if old.pool == key && old.last.Before(f.Now) && old.usual > 0 { // it has left
			speeds = append(speeds, old.usual)
		}
	}
	p.usual = median(speeds)
}
