package problems

import (
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

// Tracker keeps what a moment does not show: ages, returns of workers, speeds before a restart, refusals. Its owner
// calls Update about once a second and guards it. The zero value is ready.
type Tracker struct {
	since   map[string]span // problems by kind and subject
	workers map[string]*past
	before  map[string][]old // by pool and device: the processes that have ended
	totals  []totals         // lately
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
	usual         float64
}

// old is the usual speed of a process that has ended.
type old struct {
	at    time.Time
	speed float64
}

// totals are those of one moment.
type totals struct {
	at time.Time
	Totals
}

// Update returns the problems of now. It completes f.
func (t *Tracker) Update(f *Facts) []Problem {
	if t.since == nil {
		t.since, t.workers, t.before, t.began = map[string]span{}, map[string]*past{}, map[string][]old{}, f.Now
	}
	t.totals = slices.DeleteFunc(append(t.totals, totals{f.Now, f.Totals}), func(was totals) bool { return f.Now.Sub(was.at) > lately })
	f.before = t.totals[0].Totals
	for i := range f.Pools {
		for j := range f.Pools[i].Workers {
			t.meet(f, &f.Pools[i], &f.Pools[i].Workers[j])
		}
	}
	t.forget(f.Now)
	for i := range f.Pools {
		t.compare(f, &f.Pools[i])
	}
	all := Find(f)
	for i := range all {
		key := string(all[i].Kind) + " " + all[i].Subject
		s := t.since[key]
		if s.first.IsZero() {
			s.first = f.Now
		}
		s.last = f.Now
		all[i].Since, t.since[key] = s.first, s
	}
	for key, s := range t.since {
		if f.Now.Sub(s.last) > sameFor {
			delete(t.since, key)
		}
	}
	return all
}

// meet updates one worker. A return is a new process, or serving again.
func (t *Tracker) meet(f *Facts, p *Pool, w *Worker) {
	known := t.workers[w.ID]
	switch {
	case known == nil || w.Process != "" && known.process != w.Process:
		began := &past{pool: p.device(w), process: w.Process, span: span{first: f.Now}}
		if known != nil {
			t.end(known, f.Now)
			began.returns = append(known.returns, f.Now)
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

// mostOld bounds the ended processes that are kept of a pool.
const mostOld = 256

// end keeps the speed of a process that has ended.
func (t *Tracker) end(w *past, now time.Time) {
	if all := t.before[w.pool]; w.usual > 0 && len(all) < mostOld {
		t.before[w.pool] = append(all, old{now, w.usual})
	}
}

// forget drops what is too old to matter.
func (t *Tracker) forget(now time.Time) {
	for id, w := range t.workers {
		if now.Sub(w.last) > flapWindow {
			t.end(w, now)
			delete(t.workers, id)
		}
	}
	for pool, all := range t.before {
		if all = slices.DeleteFunc(all, func(o old) bool { return now.Sub(o.at) > rolloutWindow }); len(all) == 0 {
			delete(t.before, pool)
		} else {
			t.before[pool] = all
		}
	}
}

// compare sets the speed that a pool's restarted workers are compared with: that of the processes before.
func (t *Tracker) compare(f *Facts, p *Pool) {
	var speeds []float64
	for i := range p.Workers {
		if !p.Workers[i].young {
			continue
		}
		key := p.device(&p.Workers[i])
		for _, o := range t.before[key] {
			speeds = append(speeds, o.speed)
		}
		for _, known := range t.workers {
			if known.pool == key && known.last.Before(f.Now) && known.usual > 0 { // it has left
				speeds = append(speeds, known.usual)
			}
		}
		break // a rollout is of one device
	}
	p.usual = median(speeds)
}
