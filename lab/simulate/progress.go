package simulate

import (
	"fmt"
	"sync"

	"github.com/tandem-pd/tandem/internal/terminal"
)

// Progress is how far a study is. Its zero value belongs to a study that has not begun; State may be called at any
// time, and a nil Progress counts nothing.
type Progress struct {
	mu    sync.Mutex
	runs  int
	ended int
	parts []*part
	last  string
}

// State is how far the study is: runs that have ended, and the parts of those that have not.
func (p *Progress) State() terminal.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs == 0 {
		return terminal.State{Text: "reading the plan's traces"}
	}
	done := float64(p.ended)
	for _, part := range p.parts {
		done += part.share
	}
	text := fmt.Sprintf("%d of %d runs", p.ended, p.runs)
	if p.last != "" {
		text += ", last " + p.last
	}
	return terminal.State{Share: done / float64(p.runs), Text: text}
}

func (p *Progress) begin(runs int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = runs
}

// part is one job of a study, which makes one run after another.
type part struct {
	of    *Progress
	share float64 // of the run that it makes
}

func (p *Progress) part() *part {
	made := &part{of: p}
	if p == nil {
		return made
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parts = append(p.parts, made)
	return made
}

// at reports the finished part of the present run.
func (t *part) at(share float64) {
	if t.of == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.share = share
}

// ended reports that the run of this name has ended.
func (t *part) ended(name string) {
	if t.of == nil {
		return
	}
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.share, t.of.last = 0, name
	t.of.ended++
}

// tellShare reports the share of the run's requests that have ended.
func (r *run) tellShare() {
	if r.cfg.At == nil {
		return
	}
	all, left := 0, r.open
	for i := range r.cfg.Stages {
		n := len(r.cfg.Stages[i].Requests)
		if all += n; i > int(r.stage) {
			left += n
		}
	}
	r.cfg.At(float64(all-left) / float64(max(1, all)))
}
