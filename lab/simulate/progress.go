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
	last  string
}

// State is how many of the study's runs have ended.
func (p *Progress) State() terminal.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs == 0 {
		return terminal.State{Text: "reading the plan's traces"}
	}
	text := fmt.Sprintf("%d of %d runs", p.ended, p.runs)
	if p.last != "" {
		text += ", last " + p.last
	}
	return terminal.State{Share: float64(p.ended) / float64(p.runs), Text: text}
}

// begin sets how many runs there are.
func (p *Progress) begin(runs int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = runs
}

// end counts a run of this name.
func (p *Progress) end(name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended++
	p.last = name
}
