package console

import (
	"net/url"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// shownFamilies is how many families the map shows.
const shownFamilies = 20

// overlapMap shows how much of the shared beginnings of a model's prompts each worker has.
type overlapMap struct {
	Model    string
	Role     pools.Role
	Workers  []string
	Families []familyRow
	figures  // of the last quarter of an hour
}

type familyRow struct {
	Name           string
	Requests       uint64
	Tokens         int // of the shared beginning
	Share          int // of the hottest family's weight, in percent
	Held           []held
	Predicted, Hit float64
}

// held is one worker's part of a family's beginning, in percent.
type held struct {
	Worker  string
	Percent int
}

// Step returns the percentage in quarters, for the colour.
func (h held) Step() int { return (h.Percent + 12) / 25 }

// cacheData returns the overlap map of each pool that computes prompts.
func (c *Console) cacheData(url.Values) (any, string) {
	revision := c.recorder.families.revision()
	now, hot := time.Now(), c.recorder.families.hot()
	var maps []overlapMap
	for _, p := range c.src.Rooms.Roster.Pools() {
		if p.Role == pools.Decode && c.computes(p.Model) || len(p.Members) == 0 {
			continue
		}
		m := overlapMap{Model: p.Model, Role: p.Role, Workers: slices.Collect(p.IDs())}
		c.recorder.mu.Lock()
		if of := c.recorder.models[p.Model]; of != nil {
			m.figures = of.quarter()
		}
		c.recorder.mu.Unlock()
		r := c.src.Rooms.Routers.For(p.Model, p.Role)
		for i := range hot {
			if f := &hot[i]; f.model == p.Model && len(m.Families) < shownFamilies {
				m.Families = append(m.Families, f.row(r, p, hot[0].weight, now))
			}
		}
		maps = append(maps, m)
	}
	return struct{ Maps []overlapMap }{maps}, revision
}

// computes reports whether a model has prefill workers.
func (c *Console) computes(model string) bool {
	return len(c.src.Rooms.Roster.Snapshot(model, pools.Prefill).Members) > 0
}

// row looks up the family's beginning on each worker.
func (f *namedFamily) row(r *router.Router, p *pools.Pool, most float64, now time.Time) familyRow {
	unit := index.Unit(f.text)
	blocks := unit.Blocks(f.shared)
	row := familyRow{
		Name: f.Name, Requests: f.requests, Tokens: blocks * f.blockSize, Share: int(100 * f.weight / max(most, 1e-9)),
		Predicted: ratio(int(f.predicted), int(f.isl)), Hit: ratio(int(f.actual), int(f.isl)),
	}
	have := r.Held(p, router.Request{ID: "console", ISL: row.Tokens, Hashes: f.chain[:f.shared], Text: f.text}, now)
	for i, n := range have {
		row.Held = append(row.Held, held{p.Members[i].Worker.ID, min(100, n*100/max(1, blocks))})
	}
	return row
}

// HitRate and PredictedRate are of the last quarter of an hour.
func (m *overlapMap) HitRate() string       { return percent(m.hitRate()) }
func (m *overlapMap) PredictedRate() string { return percent(m.predictedRate()) }
